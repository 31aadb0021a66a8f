"""What an experiment is made of and comes to: units of work, estimates with intervals, parts of a claim, a verdict.

The rule of every verdict is here: a *part* of the paper's claim is a number with an interval and a bound it must stay
on one side of. It **held** when the whole interval does, **held in direction** when only the number does, and **did
not hold** otherwise; it is contradicted, or refuted, when the whole interval is on the other side. A claim held when
all its parts did. When some held and some did not, it is mixed if any is contradicted, and held in part if none is.
When none held it did not hold if any is contradicted, and is undecided if none is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolayer.errors import InputError, need

Held = Literal["held", "held in direction", "did not hold"]
VERDICTS: tuple[Held, ...] = ("held", "held in direction", "did not hold")  # best first
PARTLY, MIXED, UNDECIDED = "held in part", "mixed", "undecided"  # what parts that differ can come to
Numbers = dict[str, Any]
QUICK_SEEDS = 2
MOST_NAMED = 4  # parts of each kind that a verdict names
FIRST_SEED = 1000  # of a full run: sizes, rates and recipes were chosen on seeds from 0 on, which quick runs use


@dataclass(frozen=True)
class Unit:
    """The least piece of an experiment that is run and saved as a whole.

    Args:
        seed: Of everything random in it.
        setting: What is compared; all seeds run all settings.
        quick: Whether sizes are small.
        cost: About how many seconds it takes; only the time left is told by it.
    """

    seed: int
    setting: str = "all"
    quick: bool = False
    cost: float = 1.0

    @property
    def first(self) -> bool:
        """Whether its seed is the first of its kind of run.

        >>> Unit(FIRST_SEED).first, Unit(0).first, Unit(0, quick=True).first
        (True, False, True)
        """
        return self.seed == first_seed(quick=self.quick)


def first_seed(*, quick: bool) -> int:
    """Where seeds begin; those of full runs are none that anything was chosen on."""
    return 0 if quick else FIRST_SEED


class Finished(NamedTuple):
    """A unit and the numbers it gave."""

    unit: Unit
    numbers: Numbers


def units_of(
    settings: Sequence[str],
    *,
    quick: bool,
    seeds: int,
    cost: float | Callable[[str], float] = 1.0,
    seen: int = 0,
) -> list[Unit]:
    """Every setting under every seed, seeds outermost.

    Args:
        settings: What is compared.
        quick: Whether sizes are small.
        seeds: How many.
        cost: Of a unit, or of one of a setting.
        seen: Seeds of a full run that are left out, since a rule or an arm was set when they had been reported.

    >>> [(unit.seed, unit.setting) for unit in units_of(["a", "b"], quick=True, seeds=2)]
    [(0, 'a'), (0, 'b'), (1, 'a'), (1, 'b')]
    >>> [unit.seed for unit in units_of(["a"], quick=False, seeds=2, seen=100)]
    [1100, 1101]
    """
    if seeds < 2:
        raise InputError(f"seeds: expected at least 2, got {seeds}; an interval needs two")
    start = first_seed(quick=quick) + (0 if quick else seen)
    return [
        Unit(seed, setting, quick, cost(setting) if callable(cost) else cost)
        for seed in range(start, start + seeds)
        for setting in settings
    ]


def by_seed(finished: Sequence[Finished], setting: str, key: str) -> NDArray[np.float64]:
    """One number of one setting, in order of the seeds, so that settings may be subtracted; ``[seeds]``.

    >>> done = [Finished(Unit(1, "a"), {"auc": 0.8}), Finished(Unit(0, "a"), {"auc": 0.7})]
    >>> by_seed(done, "a", "auc").tolist()
    [0.7, 0.8]
    """
    ordered = sorted((one for one in finished if one.unit.setting == setting), key=lambda one: one.unit.seed)
    return np.array([one.numbers[key] for one in ordered], dtype=np.float64)


class Estimate(NamedTuple):
    """A mean over seeds and its interval."""

    value: float
    lower: float
    upper: float
    seeds: int


def estimate(values: ArrayLike, *, level: float = 0.95) -> Estimate:
    r"""The mean over seeds with its t-interval, :math:`\bar x \pm t_{n-1} s / \sqrt n`.

    >>> one = estimate([1.0, 2.0, 3.0])
    >>> one.value, round(one.lower, 3), round(one.upper, 3), one.seeds
    (2.0, -0.484, 4.484, 3)
    """
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or len(column) < 2 or not np.isfinite(column).all():
        raise InputError(f"values: expected two or more finite numbers, got {column.tolist()}; run more seeds")
    quantile = float(need("scipy.special").stdtrit(len(column) - 1, 0.5 + level / 2))
    half = quantile * float(column.std(ddof=1)) / math.sqrt(len(column))
    mean = float(column.mean())
    return Estimate(mean, mean - half, mean + half, len(column))


def geometric_mean(values: ArrayLike) -> Estimate:
    """The geometric mean of numbers above 0, such as ratios, with a t-interval on the log scale.

    Doubling and halving cancel, which they do not in the mean of ratios, and no bound is below 0. The interval is not
    symmetric around the value.

    Args:
        values: One per seed, ``[seeds]``, or several per seed that are averaged first, ``[several, seeds]``.

    >>> found = geometric_mean([0.5, 2.0])
    >>> found.value, round(found.lower * found.upper, 6)
    (1.0, 1.0)
    """
    column = np.asarray(values, dtype=np.float64)
    if not (column > 0).all():
        raise InputError(f"values: expected numbers above 0, got {column.min()}; there is no logarithm of it")
    logs = estimate(np.atleast_2d(np.log(column)).mean(axis=0))
    return Estimate(math.exp(logs.value), math.exp(logs.lower), math.exp(logs.upper), logs.seeds)


def proportion(shares: ArrayLike, *, level: float = 0.95) -> Estimate:
    """The mean of shares, one per seed, with the exact (Clopper-Pearson) interval of that many of as many trials.

    Unlike a t-interval it is not empty where all shares are 0 or all are 1. What shares a seed counts as one trial.

    >>> none = proportion([0.0] * 6)
    >>> none.value, none.lower, round(none.upper, 3)
    (0.0, 0.0, 0.459)
    """
    column = np.asarray(shares, dtype=np.float64)
    hits, trials, tail = float(column.sum()), len(column), (1 - level) / 2
    quantile = need("scipy.special").betaincinv
    lower = float(quantile(hits, trials - hits + 1, tail)) if hits > 0 else 0.0
    upper = float(quantile(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0
    return Estimate(hits / trials, lower, upper, trials)


def certain(value: float) -> Estimate:
    """A number without chance in it.

    >>> certain(0.5)
    Estimate(value=0.5, lower=0.5, upper=0.5, seeds=1)
    """
    return Estimate(float(value), float(value), float(value), 1)


@dataclass(frozen=True)
class Part:
    """One thing a claim says, and the number that decides it.

    Args:
        says: The claim, so that it reads well after "held:" or "did not hold:".
        estimate: What was measured.
        above: The number must be above this.
        below: The number must be below this.
        unit: What the number is counted in, shown after it, such as ``"%"`` or ``" x1e-4"``.

    >>> Part("AUC rises", Estimate(0.8, 0.3, 1.3, 5), above=0).held
    'held'
    >>> Part("AUC rises", Estimate(0.8, -0.3, 1.9, 5), above=0).held
    'held in direction'
    """

    says: str
    estimate: Estimate
    above: float = -math.inf
    below: float = math.inf
    unit: str = ""

    @property
    def held(self) -> Held:
        """Held, held in direction, or did not hold."""
        value, lower, upper, _ = self.estimate
        if self.above < lower and upper < self.below:
            return "held"
        return "held in direction" if self.above < value < self.below else "did not hold"

    @property
    def refuted(self) -> bool:
        """Whether the whole interval is on the other side of a bound.

        >>> Part("AUC rises", Estimate(-0.8, -1.5, -0.1, 5), above=0).refuted
        True
        >>> Part("AUC rises", Estimate(-0.8, -1.7, 0.1, 5), above=0).refuted
        False
        """
        return self.estimate.upper < self.above or self.estimate.lower > self.below

    @property
    def must(self) -> str:
        """The bound in words.

        >>> Part("AUC rises", certain(1), above=0).must
        'above 0'
        """
        bounds = (("above", self.above), ("below", self.below))
        return " and ".join(f"{side} {bound:g}" for side, bound in bounds if math.isfinite(bound))


def outcome_of(parts: Sequence[Held], *, contradicted: bool) -> str:
    """What parts come to.

    Args:
        parts: How each came out.
        contradicted: Whether any that did not hold has its whole interval on the other side.

    >>> outcome_of(["held", "held in direction"], contradicted=False)
    'held in direction'
    >>> [outcome_of(["did not hold", "held in direction"], contradicted=known) for known in (True, False)]
    ['did not hold', 'undecided']
    >>> [outcome_of(["did not hold", "held"], contradicted=known) for known in (True, False)]
    ['mixed', 'held in part']
    """
    worst = max(parts, key=VERDICTS.index)
    if worst != "did not hold":
        return worst
    if "held" in parts:
        return MIXED if contradicted else PARTLY
    return worst if contradicted else UNDECIDED


@dataclass(frozen=True)
class Row:
    """One line of the table: the paper's figure, if it has one, beside ours."""

    name: str
    metric: str
    ours: Estimate
    paper: str = ""
    digits: int = 3
    unit: Literal["", "%"] = ""


@dataclass(frozen=True)
class Result:
    """What the units come to.

    Args:
        rows: The table.
        parts: What the claim says, each with the number that decides it.
        series: Columns for the picture, or whatever it needs; plain numbers, strings and lists.
        note: A sentence after the verdict: what the reader should know.
    """

    rows: tuple[Row, ...]
    parts: tuple[Part, ...]
    series: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def held(self) -> str:
        """What its parts come to.

        >>> Result((), (Part("one", certain(1), above=0), Part("two", certain(1), below=0))).held
        'mixed'
        """
        return outcome_of([part.held for part in self.parts], contradicted=any(part.refuted for part in self.parts))

    @property
    def verdict(self) -> str:
        """How many parts held, which did not (the first few of them), and the note.

        >>> parts = Part("AUC rises", certain(1), above=0), Part("NE falls", certain(1), below=0)
        >>> Result((), parts, note="On one seed.").verdict
        '1 of 2 parts held. Did not hold: NE falls. On one seed.'
        """
        said = {held: [part.says for part in self.parts if part.held == held] for held in VERDICTS}
        count, total = len(said["held"]), len(self.parts)
        sentences = [f"{count} of {total} parts held." if count < total else f"All parts held ({total})."]
        sentences += [f"{held.capitalize()}: {_named(said[held])}." for held in VERDICTS[1:] if said[held]]
        return " ".join([*sentences, self.note] if self.note else sentences)


def _named(parts: Sequence[str]) -> str:
    """Some parts in a sentence; the table beside it has all of them.

    >>> _named(["one", "two"]), _named(["a", "b", "c", "d", "e", "f"])
    ('one; two', 'a; b; c; d; and 2 more in the table')
    """
    left = len(parts) - MOST_NAMED
    return "; ".join([*parts[:MOST_NAMED], *([f"and {left} more in the table"] if left > 0 else [])])
