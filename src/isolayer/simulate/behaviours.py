r"""How users act on a ranked list: the usual click models, and arbitrary monotone distortions.

Positions k count from 0, grades y are 0 .. 4, and :math:`\gamma = (2^y - 1) / 15` is the relevance of a grade. A
behaviour has two methods: ``curve`` gives its position curve, ``act`` turns what was shown into probabilities and
labels. Tasks other than click depend on the same attention: a seen item gets task t with probability :math:`r_t`, so
:math:`P_t = e\, r_t`. A *skip* also occurs wherever the item was not seen, :math:`P_{skip} = 1 - e (1 - r_{skip})`, so
it becomes more frequent further down, where clicks become rarer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.columns import probs, some, weights
from isolayer.settings import number, seed

Single = NDArray[np.float32]
Flags = NDArray[np.bool_]
Grades = NDArray[np.int8]

ULTRA_EXAMINATION = (0.68, 0.61, 0.48, 0.34, 0.28, 0.20, 0.11, 0.10, 0.08, 0.06)
GRADES = 5
GAIN = ((2.0 ** np.arange(GRADES) - 1) / (2.0 ** (GRADES - 1) - 1)).astype(np.float32)  # relevance of each grade


class Shown(NamedTuple):
    """What a behaviour can use about the shown items, ``[sessions, positions]``."""

    grade: Grades  # [sessions, positions]
    curve: Single  # [sessions, positions], each session's row of ``curve``
    device: NDArray[np.int32]  # [sessions]
    relevance: Mapping[str, Single]  # of every task except click, [sessions, positions]
    look: Single  # uniform draws of attention, by position
    draw: Mapping[str, Single]  # uniform draws of each task, click included, by item
    session: NDArray[np.int32] | None = None  # [sessions]; behaviours that differ between sessions read it


class Outcome(NamedTuple):
    """What users did: true probabilities and labels, each ``[sessions, positions]``."""

    examination: Single
    prob: dict[str, Single]
    label: dict[str, Flags]


class Behaviour(Protocol):
    """A model of how users act; see the module's docstring."""

    @property
    def eta(self) -> float | tuple[float, ...]:
        """Strength of the bias, one for all devices or one per device; 0 means no bias."""

    def curve(self, positions: int, eta: NDArray[np.float64]) -> NDArray[np.float64]:
        """The curve over positions at each strength of the bias, ``[strengths, positions]``."""

    def act(self, shown: Shown) -> Outcome:
        """True probabilities and labels of every shown item."""


def table_examination(positions: int, eta: NDArray[np.float64], table: tuple[float, ...]) -> NDArray[np.float64]:
    """Examination ``table[k] ** eta``, the last value repeating, ``[strengths, positions]``.

    >>> table_examination(3, np.array([0.0, 1.0]), (0.5, 0.25)).tolist()
    [[1.0, 1.0, 1.0], [0.5, 0.25, 0.25]]
    """
    base = np.asarray(table)[np.minimum(np.arange(positions), len(table) - 1)]
    return np.asarray(base ** eta[:, None])


def power_examination(positions: int, eta: NDArray[np.float64]) -> NDArray[np.float64]:
    """Examination ``(1 / (k + 1)) ** eta``, ``[strengths, positions]``.

    >>> power_examination(3, np.array([1.0])).round(2).tolist()
    [[1.0, 0.5, 0.33]]
    """
    return np.asarray((1.0 / np.arange(1, positions + 1)) ** eta[:, None])


@dataclass(frozen=True)
class PositionBased:
    r"""Position-based model: :math:`P(click) = e_k\,(\epsilon + (1 - \epsilon)\gamma)`.

    Args:
        examination: The table of :math:`e_k` (ULTRA's by default), raised to ``eta``; the last value repeats. ``None``
            is the power law :math:`(1/(k+1))^\eta`.
        eta: Strength, one for all devices or one per device.
        noise: :math:`\epsilon`, the click rate of a seen item of grade 0.

    >>> PositionBased().curve(3, np.array([1.0])).tolist()
    [[0.68, 0.61, 0.48]]
    """

    examination: tuple[float, ...] | None = ULTRA_EXAMINATION
    eta: float | tuple[float, ...] = 1.0
    noise: float = 0.1

    def __post_init__(self) -> None:
        if self.examination is not None:
            some("examination", probs("examination", self.examination, advice="give one share per position"))
        check_settings(self.eta, noise=self.noise)

    def curve(self, positions: int, eta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Examination at each strength, ``[strengths, positions]``."""
        if self.examination is None:
            return power_examination(positions, eta)
        return table_examination(positions, eta, self.examination)

    def act(self, shown: Shown) -> Outcome:
        """True probabilities and labels of every shown item."""
        attraction = (self.noise + (1 - self.noise) * GAIN).astype(np.float32)[shown.grade]
        seen = shown.look < shown.curve
        return engage(shown, shown.curve, seen, attraction)


@dataclass(frozen=True)
class Trust:
    r"""Trust bias with the parameters of CMIP: users trust top positions and click irrelevant items there too.

    :math:`P(click) = e_k [\theta^+_k \gamma + \theta^-_k (1 - \gamma)]` with :math:`e_k = (1/(k+1))^\eta`,
    :math:`\theta^+_k = 1 - (\min(k+1, 20) + 1)/100` and :math:`\theta^-_k = .65 / \min(k+1, 10)`: affine in relevance.
    """

    eta: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        check_settings(self.eta)

    def curve(self, positions: int, eta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Examination at each strength, ``[strengths, positions]``."""
        return power_examination(positions, eta)

    @staticmethod
    def rates(positions: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """True-positive and false-positive rates of a seen item at each position.

        >>> [rate.round(3).tolist() for rate in Trust.rates(2)]
        [[0.98, 0.97], [0.65, 0.325]]
        """
        rank = np.arange(1, positions + 1)
        return 1 - (np.minimum(rank, 20) + 1) / 100, 0.65 / np.minimum(rank, 10)

    def act(self, shown: Shown) -> Outcome:
        """True probabilities and labels of every shown item."""
        true_positive, false_positive = (rate.astype(np.float32) for rate in self.rates(shown.grade.shape[1]))
        attraction = false_positive + (true_positive - false_positive) * GAIN[shown.grade]
        seen = shown.look < shown.curve
        return engage(shown, shown.curve, seen, attraction)


@dataclass(frozen=True)
class DynamicBayesian:
    r"""Cascade with satisfaction, DBN: users read down the list and stop when satisfied or tired.

    Attraction :math:`a = \max(y/4, .1)`, satisfaction after a click :math:`s = y/8`, continuation
    :math:`c = .8^\eta` otherwise:
    :math:`e_0 = 1`, :math:`e_{k+1} = e_k\, c\, (1 - a_k s_k)`, :math:`P(click) = e_k a_k`.
    """

    continuation: float = 0.8
    eta: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        check_settings(self.eta, continuation=self.continuation)

    def curve(self, positions: int, eta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probability of reading on when not satisfied, at each strength, ``[strengths, positions]``."""
        return table_examination(positions, eta, (self.continuation,))

    def act(self, shown: Shown) -> Outcome:
        """True probabilities and labels of every shown item."""
        attraction = np.maximum(shown.grade / np.float32(4), np.float32(0.1))
        satisfied = shown.grade / np.float32(8)
        after_click: Single = np.multiply(shown.curve, 1 - satisfied, dtype=np.float32)
        return cascade(shown, attraction, after_click, shown.curve)


@dataclass(frozen=True)
class DependentClick:
    r"""Cascade, DCM: users continue with probability :math:`\beta (k+1)^{-\eta}` after a click, and always without one.

    Attraction :math:`a = \epsilon + (1 - \epsilon) \gamma`: :math:`e_{k+1} = e_k (1 - a_k + a_k \beta (k+1)^{-\eta})`,
    :math:`P(click) = e_k a_k`.
    """

    beta: float = 0.6
    eta: float | tuple[float, ...] = 1.0
    noise: float = 0.1

    def __post_init__(self) -> None:
        check_settings(self.eta, beta=self.beta, noise=self.noise)

    def curve(self, positions: int, eta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probability of reading on after a click at each position, at each strength, ``[strengths, positions]``."""
        return self.beta * power_examination(positions, eta)

    def act(self, shown: Shown) -> Outcome:
        """True probabilities and labels of every shown item."""
        attraction = (self.noise + (1 - self.noise) * GAIN).astype(np.float32)[shown.grade]
        return cascade(shown, attraction, shown.curve, np.ones_like(shown.curve))


@dataclass(frozen=True)
class Distortion:
    r"""Any monotone distortion per task, position and device: :math:`\mathrm{logit} P = g_{t,k,d}(\mathrm{logit}\, r)`.

    :math:`g(z) = b z + c \tanh(z - m) - \eta\, s_t \log(k + 1)` with :math:`b \in [.5, 1.1]`, :math:`c \in [0, 1]`,
    :math:`m \in [-3, 0]` drawn for every (task, position, device): increasing, curved, and different for each.
    :math:`s_t` is 1, and -1 for skip, which rises with position. The relevance of click enters as
    :math:`.05 + .9 \gamma`. Every item is seen: there is no examination to estimate.

    Args:
        eta: Strength of the fall with position, one for all devices or one per device.
        seed: Seed of the distortions, separate from that of the log.
    """

    eta: float | tuple[float, ...] = 0.6
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self.eta)
        seed("seed", self.seed)

    def curve(self, positions: int, eta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Offset of each position in logit, at each strength, ``[strengths, positions]``."""
        return np.asarray(-eta[:, None] * np.log(np.arange(1, positions + 1)))

    def map(self, task: str, logit: Single, device: NDArray[np.int32], offset: Single) -> Single:
        """``g`` of a task, for logits and offsets ``[sessions, positions]`` and devices ``[sessions]``.

        >>> z = np.array([[-1.0], [0.0], [1.0]], dtype=np.float32)
        >>> y = Distortion().map("like", z, np.zeros(3, dtype=np.int32), np.zeros((3, 1), dtype=np.float32))
        >>> bool((np.diff(y, axis=0) > 0).all())
        True
        """
        rng = np.random.default_rng([self.seed, *task.encode()])
        shape = (int(device.max()) + 1 if device.size else 1, logit.shape[1], 3)
        low, high = np.array([0.5, 0.0, -3.0]), np.array([1.1, 1.0, 0.0])
        slope, bend, centre = np.moveaxis(rng.uniform(low, high, shape).astype(np.float32)[device], -1, 0)
        direction = np.float32(-1 if task == "skip" else 1)
        return np.asarray(slope * logit + bend * np.tanh(logit - centre) + direction * offset)

    def act(self, shown: Shown) -> Outcome:
        """True probabilities and labels of every shown item."""
        click = np.float32(0.05) + np.float32(0.9) * GAIN[shown.grade]
        prob, label = {}, {}
        for task, relevance in {"click": click, **shown.relevance}.items():
            logit = np.log(relevance) - np.log1p(-relevance)
            prob[task] = expit(self.map(task, logit, shown.device, shown.curve))
            label[task] = shown.draw[task] < prob[task]
        return Outcome(np.ones_like(shown.curve), prob, label)


def engage(shown: Shown, examination: Single, seen: Flags, attraction: Single) -> Outcome:
    """Clicks and the other tasks, given which items were seen and the probability of each task for a seen item."""
    prob = {"click": examination * attraction}
    label = {"click": seen & (shown.draw["click"] < attraction)}
    for task, relevance in shown.relevance.items():
        happens = shown.draw[task] < relevance
        if task == "skip":
            prob[task], label[task] = 1 - examination * (1 - relevance), happens | ~seen
        else:
            prob[task], label[task] = examination * relevance, happens & seen
    return Outcome(examination, prob, label)


def cascade(shown: Shown, attraction: Single, after_click: Single, after_none: Single) -> Outcome:
    """Users continue with probability ``after_click`` or ``after_none``; true probabilities are marginal over this."""
    examination, seen = np.ones_like(attraction), np.ones(attraction.shape, dtype=np.bool_)
    click = shown.draw["click"] < attraction
    go_on = attraction * after_click + (1 - attraction) * after_none
    for k in range(attraction.shape[1] - 1):
        stays = shown.look[:, k] < np.where(click[:, k], after_click[:, k], after_none[:, k])
        seen[:, k + 1] = seen[:, k] & stays
        examination[:, k + 1] = examination[:, k] * go_on[:, k]
    return engage(shown, examination, seen, attraction)


def expit(logit: Single) -> Single:
    """Probability of a logit, in the same precision.

    >>> expit(np.zeros(1, dtype=np.float32))
    array([0.5], dtype=float32)
    """
    return np.asarray(1 / (1 + np.exp(-logit)))


def strengths(behaviour: Behaviour, devices: int) -> NDArray[np.float64]:
    """The behaviour's ``eta`` of each device, ``[devices]``.

    >>> strengths(PositionBased(eta=2.0), 3).tolist()
    [2.0, 2.0, 2.0]
    """
    eta = _column(behaviour.eta)
    if len(eta) not in (1, devices):
        raise InputError(f"eta: expected one number, or {devices} (one per device), got {len(eta)}; fix the count")
    return np.broadcast_to(eta, (devices,)).copy()


def _column(eta: float | tuple[float, ...]) -> NDArray[np.float64]:
    """The strengths as a column: one number, or one per device."""
    if isinstance(eta, tuple | list | np.ndarray):
        return some("eta", weights("eta", eta))
    return np.array([number("eta", eta, 0, ends="[)", advice="or give one per device")])


def check_settings(eta: float | tuple[float, ...], **rates: float) -> None:
    """Raise unless the strengths and the rates of a behaviour can be used."""
    _column(eta)
    for name, rate in rates.items():
        number(name, rate, 0, 1, ends="[]", advice="give a probability")
