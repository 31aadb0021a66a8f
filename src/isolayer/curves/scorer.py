"""Scores one row at a time in Python: a plain object without arrays, for servers that score single requests.

:class:`Scorer` gives the answer of :meth:`Curves.predict_proba` for one row, in microseconds: it finds the curve in
dictionaries and evaluates it with a few float operations. Values of unusual types (a numpy scalar, a decimal, a date)
are passed to the array code, so both follow the same contract. :class:`WatchedScorer` serves the newest file.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import NEAR
from isolayer.errors import InputError
from isolayer.fitting.categories import typed
from isolayer.fitting.field_levels import Field
from isolayer.fitting.terms import LAST_GRID, Term, Terms
from isolayer.grid import Grid
from isolayer.settings import instance, number
from isolayer.settings import path as checked_path

_TYPES = {"i": int, "b": bool, "U": str}
_CACHED = 1 << 14  # how many packed curves are kept unpacked


class _Level(NamedTuple):
    """The curves of one depth: the column, the type of its values, and the row of each (parent row, value)."""

    name: str
    kind: type | None
    rows: dict[tuple[int, Any], int]


class Scorer:
    """Calibrated probabilities of single rows; make one by :meth:`Curves.scorer`.

    It is immutable, so any number of threads may use it, and it can be pickled.

    Args:
        curves: The curves.

    >>> from isolayer.grid import Grid
    >>> scorer = Curves.identity(Grid()).scorer()
    >>> scorer(0.0)
    0.5
    """

    def __init__(self, curves: Curves) -> None:
        self.curves = instance("curves", curves, Curves, advice="load or fit the calibrator")
        self._levels = [_level(curves, depth) for depth in range(1, len(curves.contexts) + 1)]
        dense = isinstance(curves.values, np.ndarray)
        self._flat = np.ascontiguousarray(curves.values, np.float64).reshape(-1).data if dense else None
        self._unpacked = dict[int, Sequence[float]]()
        self._terms = None if curves.terms is None else _Terms.of(curves.terms)
        self._is_prob, self._extend = curves.scale == "prob", curves.extrapolation == "extend"
        self._line = _Line.of(curves.grid)

    def __reduce__(self) -> tuple[type[Scorer], tuple[Curves]]:
        return Scorer, (self.curves,)

    def __call__(self, score: float, context: Mapping[str, Any] | None = None) -> float:
        """Calibrated probability of a score.

        Args:
            score: On the scale of the curves.
            context: Values of the context and field columns by name; without it, the global curve.
        """
        logit = self.logit(score, context)
        clipped = -700.0 if logit < -700.0 else 36.0 if logit > 36.0 else logit
        return 1 / (1 + float(np.exp(-clipped)))

    def logit(self, score: float, context: Mapping[str, Any] | None = None) -> float:
        """Calibrated logit of a score."""
        if type(score) is not float or score - score != 0.0 or (self._is_prob and not 0.0 <= score <= 1.0):
            score = float(np.asarray(self.curves._logit([score]))[0])  # raises an error for an invalid score
        elif self._is_prob:
            inside = min(max(score, NEAR), 1 - NEAR)
            score = float(np.log(inside / (1 - inside)))
        values, first = self._curve(0 if context is None else self._row(context))
        base = self._line.read(values, first, score, self._extend)
        return base if self._terms is None or context is None else self._terms.corrected(base, context)

    def _row(self, context: Any) -> int:
        """Row of the curve that serves a context."""
        if type(context) is not dict and not isinstance(context, Mapping):
            return self._slowly(context)
        row = at = 0
        for level in self._levels:
            try:
                value = context[level.name]
            except KeyError:
                return self._slowly(context)
            kind = type(value)
            if (
                kind is not level.kind
                and value is not None
                and (level.kind is not None or kind not in (int, str, bool))
            ):
                return self._slowly(context)
            if at >= 0:
                at = level.rows.get((at, value), -1)
                row = at if at >= 0 else row
            if at < 0 and kind is str and not value.isascii():
                return self._slowly(context)  # which refuses what is no text
        return row

    def _slowly(self, context: Any) -> int:
        names = self.curves.contexts
        given = (
            {name: [context[name]] for name in names if name in context} if isinstance(context, Mapping) else context
        )
        return int(self.curves.rows_of(given, 1)[0])

    def _curve(self, row: int) -> tuple[Sequence[float], int]:
        """A list that contains the values of a curve, and the index of the first of them."""
        if self._flat is not None:
            return self._flat, row * self._line.knots
        values = self._unpacked.get(row)
        if values is None:
            values = array("d", self.curves.values.decode(np.array([row]))[0].tolist())
            if len(self._unpacked) < _CACHED:
                self._unpacked[row] = values
        return values, 0


class _Line(NamedTuple):
    """A grid as plain numbers."""

    lower: float
    upper: float
    scale: float
    knots: int

    @classmethod
    def of(cls, grid: Grid) -> _Line:
        return cls(float(grid.lower), float(grid.upper), 1 / grid.step, grid.buckets)

    def read(self, values: Sequence[float], first: int, x: float, extend: bool) -> float:
        """A curve at a logit: :func:`isolayer.curves.evaluation.evaluate`, operation by operation."""
        inside = self.lower if x < self.lower else self.upper if x > self.upper else x
        place = (inside - self.lower) * self.scale
        left = min(int(place), self.knots - 2)
        below = values[first + left]
        out = below + (place - left) * (values[first + left + 1] - below)
        return out + (x - inside) if extend else out


class _Terms(NamedTuple):
    """Terms of fields as plain numbers: levels by field, then offset and tilt by cell."""

    terms: Terms
    levels: list[_FieldLevels]
    cells: list[tuple[list[tuple[int, list[int], int]], dict[int, tuple[float, ...]]]]
    last: list[float] | None
    line: _Line

    @classmethod
    def of(cls, terms: Terms) -> _Terms:
        last = None if terms.last is None else terms.last.tolist()
        cells = [_cells(term) for term in terms.terms]
        return cls(terms, [_FieldLevels.of(one) for one in terms.fields], cells, last, _Line.of(LAST_GRID))

    def corrected(self, base: float, context: Mapping[str, Any]) -> float:
        """A base logit with all terms: :func:`isolayer.curves.correction.corrected`, operation by operation."""
        levels = [one.level(context) for one in self.levels]
        offset, tilt = self.terms.shared
        for views, values in self.cells:
            cell = 0
            for field, level, size in views:
                own = level[levels[field]]
                if own < 0:
                    cell = -1
                    break
                cell = cell * size + own
            found = values.get(cell)
            if found is not None:
                offset += found[0]
                tilt += found[1] if len(found) > 1 else 0.0
        width = self.terms.width
        place = min(max((base - self.terms.lower) * (1 / width), 0.0), 1.0) - 0.5
        logit = base + offset + max(tilt, -width) * place
        return logit if self.last is None else self.line.read(self.last, 0, logit, True)


class _FieldLevels(NamedTuple):
    """The levels of one field by the values of its column."""

    field: Field
    edges: list[float]
    words: dict[Any, int]
    kinds: frozenset[type]

    @classmethod
    def of(cls, field: Field) -> _FieldLevels:
        words = {word: place for place, word in enumerate(field.words.tolist())}
        kind = typed(field.words)[0].dtype.kind if len(field.words) else ""
        plain: set[type] = set() if field.part else {float, int} if field.kind == "number" else {_TYPES.get(kind, str)}
        return cls(field, field.edges.tolist(), words, frozenset(plain))

    def level(self, context: Mapping[str, Any]) -> int:
        """Level of a row; -1 if it has none."""
        try:
            value = context[self.field.column]
        except KeyError:
            names = sorted(context) if isinstance(context, Mapping) else type(context).__name__
            raise InputError(f"column {self.field.column}: expected it in the context, got {names}; add it") from None
        if value is None:
            return self.field.missing
        if type(value) not in self.kinds or value != value:
            return int(self.field.levels_of([value])[0])
        if self.field.kind == "number":
            try:
                return bisect_right(self.edges, float(value))  # compared as doubles
            except OverflowError:
                return int(self.field.levels_of([value])[0])  # which refuses it
        level = self.words.get(value, -1)
        if level < 0 and type(value) is str and not value.isascii():
            return int(self.field.levels_of([value])[0])  # which refuses what is no text
        return level


def _cells(term: Term) -> tuple[list[tuple[int, list[int], int]], dict[int, tuple[float, ...]]]:
    """Views as lists that end with -1, for rows without a level, and values by cell."""
    views = [(view.field, [*view.level.tolist(), -1], view.size) for view in term.views]
    return views, dict(zip(term.cells.tolist(), map(tuple, term.values.tolist()), strict=True))


def _level(curves: Curves, depth: int) -> _Level:
    keys = curves.keys[depth]
    known = curves._finders[depth - 1][0].values
    above = dict(zip(curves.contexts, keys, strict=False))
    parent = curves.rows_of(above, len(keys[0]), depth=depth - 1).tolist()
    rows = range(curves.starts[depth], curves.starts[depth + 1])
    found = dict(zip(zip(parent, keys[-1].tolist(), strict=True), rows, strict=True))
    return _Level(curves.contexts[depth - 1], _TYPES[known.dtype.kind] if len(known) else None, found)


class WatchedScorer:
    """A scorer that follows a file: new curves are loaded in the background, then replace the old ones in one step.

    A request is answered by the old curves or by the new ones, and never waits for a file. If a file cannot be loaded,
    the old curves stay in use, and :attr:`error` says why.

    Args:
        path: The file, which :meth:`Curves.save` replaces in one step.
        every: Seconds between checks of the file.

    >>> import tempfile
    >>> from isolayer.grid import Grid
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Curves.identity(Grid()).save(f"{folder}/curves.parquet")
    ...     with WatchedScorer(f"{folder}/curves.parquet") as scorer:
    ...         scorer(0.0)
    0.5
    """

    def __init__(self, path: str | PathLike[str], *, every: float = 1.0) -> None:
        self._every = number("every", every, 0, advice="use a second")
        self._path, self._stop = checked_path("path", path), threading.Event()
        self.error: InputError | None = None
        self.loads = 0
        self._seen = _state(path)
        self._scorer = self._load()
        self._thread = threading.Thread(target=self._watch, name="isolayer-watch", daemon=True)
        self._thread.start()

    def __call__(self, score: float, context: Mapping[str, Any] | None = None) -> float:
        """Calibrated probability of a score by the newest curves; see :class:`Scorer`."""
        return self._scorer(score, context)

    @property
    def curves(self) -> Curves:
        """The curves that are in use now."""
        return self._scorer.curves

    def _load(self) -> Scorer:
        scorer = Scorer(Curves.load(self._path))
        self.loads += 1
        return scorer

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            self.look()

    def look(self) -> None:
        """Load the file if it has changed."""
        state = _state(self._path)
        if state is None or state == self._seen:
            return
        try:
            self._scorer, self.error = self._load(), None
        except InputError as error:
            self.error = error
        self._seen = state

    def close(self) -> None:
        """Stop watching the file; the loaded curves stay in use."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> WatchedScorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _state(path: str | PathLike[str]) -> tuple[int, int, int] | None:
    """A state that changes when the file at a path is replaced; None if there is no file."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
