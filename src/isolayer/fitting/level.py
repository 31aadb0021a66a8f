"""The fit of the contexts of one level, many at a time, and the curves that are served.

The served curve is not the most probable one: a context about which little is known has its parent's curve, and the
contexts of a parent together expect as many positives as their parent does. numpy only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.chunk import Above, Chunk, Place
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.packed import Matrix
from isolayer.fitting.prior import Frame, Prior
from isolayer.fitting.shrinkage import Choice
from isolayer.fitting.small_contexts import SmallContexts
from isolayer.fitting.solver import fit

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

_CHUNK = 2048  # contexts fitted together: few enough to stay in cache, many enough that threads rarely wait
_CHUNK_VALUES = 1 << 20  # most knot values fitted together, for very fine grids
THREADS = min(8, os.cpu_count() or 1)
MANY = 1024  # with at least this many contexts in a level, small contexts are fitted in a few directions
_ALIKE = 1.25  # contexts that are fitted together differ by at most this factor in their number of cells
_FARTHEST = 0.5  # largest common shift of contexts about which little is known


class Table(NamedTuple):
    """Fitted curves, one per row: ``[curves, knots]`` each.

    Args:
        values: Knot values.
        variance: Their posterior variance.
        knot_weight: Weight of the rows around each knot.
    """

    values: Matrix
    variance: Matrix
    knot_weight: Matrix

    @classmethod
    def empty(cls, curves: int, knots: int) -> Table:
        """A table to be filled."""
        shape = (curves, knots)
        return cls(np.empty(shape), np.empty(shape, np.float32), np.empty(shape, np.float32))

    def rows(self, first: int, last: int) -> Table:
        """Some rows, not copied."""
        return Table(self.values[first:last], self.variance[first:last], self.knot_weight[first:last])


class LevelFit(NamedTuple):
    """The contexts of a level and everything that their fits have in common.

    Args:
        part: Their rows.
        above: The parent level.
        choice: Their prior.
        frame: The knots in units of calibrated logit.
        mean: Mean of the line's level and slope, shape ``[2]``.
        floor: Least slope of a curve, in units of calibrated logit.
    """

    part: Histogram
    above: Above
    choice: Choice
    frame: Frame
    mean: Floats
    floor: float

    @property
    def least(self) -> float:
        """Least rise from one knot to the next."""
        return self.floor * self.frame.step

    @property
    def starts(self) -> range:
        """First context of every chunk, in steps of the size of one."""
        size = min(_CHUNK, max(_CHUNK_VALUES // self.part.grid.buckets, 1))
        return range(0, self.part.groups, size)

    def prepared(self) -> Callable[[BinnedRows, NDArray[np.int64]], Chunk]:
        """A function that fits some contexts, given their rows and their parents."""
        choice, above, least = self.choice, self.above, self.least
        prior, wide = self._priors
        free, shared = wide.variance(), choice.shared[:, None]

        def fitted(rows: BinnedRows, parents: NDArray[np.int64]) -> Chunk:
            parent = np.ascontiguousarray(above.curves[parents].T)
            result = fit(rows, parent + shared, prior, least=least, wide=wide)
            left = np.minimum(result.variance / free, 1.0)
            served = result.values - shared * left**2  # to second order, the posterior mean of the rates
            spread = result.variance + (served - result.values) ** 2 + left**2 * above.variance[parents].T
            residual, sums = float(result.residual.max(initial=0)), _expected(rows, parent, served, left)
            return Chunk(served.T, spread.T, lambda: rows.spread(rows.weight).T, left.T, sums, residual)

        return fitted

    @property
    def _priors(self) -> tuple[Prior, Prior]:
        """The prior of the fit, and that of the bands."""
        strength, wide = (Prior.of(one, self.frame, self.mean) for one in (self.choice.strength, self.choice.wide))
        return strength, wide

    def each_chunk(self, use: Callable[[Place, Chunk], None], only: NDArray[np.int64] | None = None) -> float:
        """Fit all contexts, or some, in chunks by several threads.

        Args:
            use: Called with the indices of every chunk and the chunk.
            only: The contexts to fit, ascending; by default all.

        Returns:
            The largest residual.
        """
        starts = np.searchsorted(self.part.group, np.arange(self.part.groups + 1))
        contexts = np.arange(self.part.groups) if only is None else only
        with workers(self.part.groups) as pool:
            residuals = [0.0]
            if self.part.groups > MANY:
                contexts, residuals = self._fit_small(starts, contexts, use, pool)
            fitted = self.prepared()

            def one(contexts: NDArray[np.int64]) -> float:
                chunk = fitted(BinnedRows.picked(self.part, starts, contexts), self.above.parent[contexts])
                use(_place(contexts), chunk)
                return chunk.residual

            residuals += pool.map(one, _split(contexts, self.starts.step))
        return float(np.max(residuals))  # NaN if one of them is

    def _fit_small(
        self,
        starts: NDArray[np.int64],
        contexts: NDArray[np.int64],
        use: Callable[[Place, Chunk], None],
        pool: Executor,
    ) -> tuple[NDArray[np.int64], list[float]]:
        """Fit the small ones among some contexts. Returns the others, and residuals."""
        small = SmallContexts.of(self.part, starts, self.above, self.choice.shared, self._priors, self.least)
        left = np.zeros(self.part.groups, bool)
        left[contexts] = True

        def one(job: tuple[int, NDArray[np.int64]]) -> float:
            modes, contexts = job
            chunk, good = small.fitted(contexts, modes)
            left[contexts] = ~good
            if good.all():
                use(_place(contexts), chunk)
            elif good.any():
                use(contexts[good], chunk.only(good))
            return chunk.residual

        by_modes, cells = enumerate(small.by_modes(contexts)), np.diff(starts)
        jobs = [(modes, some) for modes, every in by_modes for some in alike(every, cells[every], self.starts.step)]
        residuals = [0.0, *pool.map(one, jobs)]
        return np.flatnonzero(left), residuals


@contextmanager
def workers(contexts: int) -> Iterator[Executor]:
    """Threads to fit this many contexts; if there are several, the linear algebra library uses one thread each.

    Chunks write to separate rows, and numpy releases the interpreter while it works; threads of a library inside these
    threads would only wait for each other.
    """
    with ExitStack() as stack:
        if contexts > MANY:
            stack.enter_context(threadpool_limits(1, user_api="blas"))
        yield stack.enter_context(ThreadPoolExecutor(max_workers=THREADS))


def _split(contexts: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    """Some contexts in parts of at most a size."""
    return (contexts[first : first + size] for first in range(0, len(contexts), size))


def alike(contexts: NDArray[np.int64], cells: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    """Some contexts in parts of at most ``size``, each with contexts of about the same number of cells.

    >>> [part.tolist() for part in alike(np.arange(5), np.array([9, 1, 9, 90, 1]), 2)]
    [[1, 4], [0, 2], [3]]
    """
    order = np.argsort(cells, kind="stable")
    contexts, cells, first = contexts[order], cells[order], 0
    while first < len(contexts):
        last = min(first + size, int(np.searchsorted(cells, _ALIKE * cells[first], "right")))
        yield np.sort(contexts[first:last])
        first = last


def _place(contexts: NDArray[np.int64]) -> Place:
    """Ascending contexts, as a slice if they have no gaps."""
    first, last = int(contexts[0]), int(contexts[-1]) + 1
    return slice(first, last) if last - first == len(contexts) else contexts


def fit_level(level: LevelFit, out: Table) -> float:
    """Fit the contexts of a level into ``out``; returns the largest residual."""
    part = level.part
    remains, sums = np.empty(out.values.shape, np.float32), np.zeros((4, part.groups))

    def keep(at: Place, chunk: Chunk) -> None:
        out.values[at], out.variance[at], out.knot_weight[at] = chunk.values, chunk.variance, chunk.weigh()
        remains[at], sums[:, at] = chunk.remains, chunk.sums

    residual = level.each_chunk(keep)
    if part.contexts:
        shift = balancing_shift(sums, level.above.parent, level.choice.strength.level)
        shifts = shift[level.above.parent][:, None] * remains
        out.values[:] += shifts
        out.variance[:] += shifts**2
    keep_rising(out.values, level.least)
    return residual


def _expected(rows: BinnedRows, parent: Floats, served: Floats, left: Floats) -> Floats:
    """Sums by context, shape ``[4, contexts]``: see :func:`balancing_shift`."""
    before, prob = (1 / (1 + np.exp(-np.clip(rows.read(values), -700, 700))) for values in (parent, served))
    information = prob * (1 - prob)
    rise = information * (rows.read(left) - rows.offset)
    return np.stack([rows.by_context(rows.weight * amount) for amount in (before, prob, rise, information)])


def balancing_shift(sums: Floats, parent: NDArray[np.int64], strength: float) -> Floats:
    """Shifts after which the curves of a parent together expect as many positives as the parent.

    The less is known about a curve, the more it is shifted.

    Args:
        sums: By context, the positives that the parent expects, those that the context's curve expects, the derivative
            of the latter with the shift, and the information about the shift; shape ``[4, contexts]``.
        parent: The parent of each context.
        strength: Precision of the shift's prior.

    Returns:
        By parent, the shift of a curve about which nothing is known; others are shifted by their share of it.
    """
    before, now, rise, information = (np.bincount(parent, column) for column in sums)
    held = strength * information / np.maximum(rise, 1e-12 * information + 1e-300)  # the noise of the two sums
    shift = np.divide(before - now, rise + held, out=np.zeros(len(rise)), where=rise + held > 0)
    return np.asarray(np.clip(shift, -_FARTHEST, _FARTHEST))


def keep_rising(values: Floats, least: float) -> None:
    """Restore a rise of at least ``least`` from knot to knot after a shift."""
    if np.isfinite(least):
        steps = least * np.arange(values.shape[1])
        values -= steps
        np.maximum.accumulate(values, axis=1, out=values)
        values += steps
