r"""Behaviours that differ between sessions: examination that depends on the query too, and mixtures of users.

Both are functions of the session's number, not of further random draws. So logs of the other behaviours do not change,
and the same session behaves in the same way under every policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.columns import some, weights
from isolayer.settings import shown as told
from isolayer.simulate.behaviours import (
    Behaviour,
    Outcome,
    PositionBased,
    Shown,
    Single,
    check_settings,
    strengths,
)

QUERY_LENGTHS = (0.5, 0.3, 0.2)  # share of sessions with short, medium and long queries
_STIR = np.uint64(0x9E3779B97F4A7C15)  # odd, so multiplying by it permutes 64-bit numbers


def session_share(session: NDArray[np.int32], stream: int) -> NDArray[np.float64]:
    """A nearly uniform number in [0, 1) for each session, always the same; streams are independent.

    >>> share = session_share(np.arange(100_000, dtype=np.int32), 1)
    >>> round(float(share.mean()), 2), round(float(np.corrcoef(share[1:], share[:-1])[0, 1]), 1)
    (0.5, 0.0)
    """
    x = (session.astype(np.uint64) + np.uint64(stream) * np.uint64(1 << 32) + np.uint64(1)) * _STIR
    for shift in (30, 27, 31):  # spreads every bit over all others
        x = (x ^ (x >> np.uint64(shift))) * _STIR
    return np.asarray((x >> np.uint64(11)).astype(np.float64) / 2.0**53)


def query_length(session: NDArray[np.int32]) -> NDArray[np.int32]:
    """Class of the length of each session's query: 0 short, 1 medium, 2 long.

    >>> np.bincount(query_length(np.arange(10_000, dtype=np.int32)) + 1).round(-3).tolist()
    [0, 5000, 3000, 2000]
    """
    cuts = np.cumsum(QUERY_LENGTHS)[:-1]
    return np.searchsorted(cuts, session_share(session, 1), side="right").astype(np.int32)


@dataclass(frozen=True)
class Contextual:
    r"""Contextual position bias: how far users look depends on the device and on the length of the query.

    :math:`P(click) = e_k^{\,\eta_{device}\, q_{length}}\,(\epsilon + (1 - \epsilon)\gamma)`: users who type a long
    query read further.

    Args:
        eta: Strength of each device, or one for all.
        query: Factor :math:`q` of short, medium and long queries.
        noise: :math:`\epsilon`, the click rate of a seen item of grade 0.
    """

    eta: float | tuple[float, ...] = (1.4, 0.8, 1.0)
    query: tuple[float, float, float] = (1.5, 1.0, 0.5)
    noise: float = 0.1

    def __post_init__(self) -> None:
        strengths(self._base, 3)
        if len(some("query", weights("query", self.query))) != len(QUERY_LENGTHS):
            raise InputError(f"query: expected {len(QUERY_LENGTHS)} factors, got {len(self.query)}; one per length")

    @property
    def _base(self) -> PositionBased:
        return PositionBased(eta=self.eta, noise=self.noise)

    def curve(self, positions: int, eta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Examination of medium queries at each strength, ``[strengths, positions]``."""
        return self._base.curve(positions, eta)

    def act(self, shown: Shown) -> Outcome:
        """True probabilities and labels of every shown item."""
        factor = np.asarray(self.query)[query_length(_sessions(shown, "Contextual"))]
        examination = (shown.curve ** factor[:, None]).astype(np.float32)
        return self._base.act(shown._replace(curve=examination))


@dataclass(frozen=True)
class Mixture:
    """Several kinds of users: each session is of one kind, which no feature reveals.

    Args:
        behaviours: How the kinds act.
        shares: Share of sessions of each kind; by default equal.
        eta: Factor of the strength of all of them, one for all devices or one per device.
    """

    behaviours: tuple[Behaviour, ...]
    shares: tuple[float, ...] | None = None
    eta: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.behaviours, tuple | list) or len(self.behaviours) < 2:
            got = told(self.behaviours)
            raise InputError(f"behaviours: expected at least two, got {got}; use simulate.PositionBased() and another")
        for behaviour in self.behaviours:
            if not all(hasattr(behaviour, name) for name in ("eta", "curve", "act")):
                raise InputError(
                    f"behaviours: expected eta, curve and act, got {told(behaviour)}; use simulate.PositionBased()"
                )
        check_settings(self.eta)
        share = some("shares", weights("shares", self._shares))
        if len(share) != len(self.behaviours) or not np.isclose(share.sum(), 1):
            rule = f"{len(self.behaviours)} that add up to 1"
            raise InputError(f"shares: expected {rule}, got {told(self.shares)}; give one per behaviour")

    @property
    def _shares(self) -> tuple[float, ...]:
        return (1 / len(self.behaviours),) * len(self.behaviours) if self.shares is None else self.shares

    def curve(self, positions: int, eta: NDArray[np.float64]) -> NDArray[np.float64]:
        """The strengths themselves: each kind has a curve of its own, ``[strengths, positions]``."""
        return np.repeat(eta[:, None], positions, axis=1)

    def kind(self, session: NDArray[np.int32]) -> NDArray[np.intp]:
        """Which of the behaviours each session follows, ``[sessions]``."""
        return np.searchsorted(np.cumsum(self._shares)[:-1], session_share(session, 2), side="right")

    def act(self, shown: Shown) -> Outcome:
        """True probabilities and labels of every shown item, each session by its own kind."""
        kind = self.kind(_sessions(shown, "Mixture"))
        found = [behaviour.act(shown._replace(curve=_own_curve(behaviour, shown))) for behaviour in self.behaviours]

        def pick(parts: list[NDArray[Any]]) -> NDArray[Any]:
            return np.asarray(np.stack(parts)[kind, np.arange(len(kind))])

        tasks = list(found[0].prob)
        prob = {task: pick([one.prob[task] for one in found]) for task in tasks}
        label = {task: pick([one.label[task] for one in found]) for task in tasks}
        return Outcome(pick([one.examination for one in found]), prob, label)


def _own_curve(behaviour: Behaviour, shown: Shown) -> Single:
    """A behaviour's curve for every session, ``[sessions, positions]``, at its strength times that of the mixture."""
    sessions, positions = shown.grade.shape
    eta = strengths(behaviour, int(max(shown.device.max(initial=0) + 1, 3)))[shown.device] * shown.curve[:, 0]
    distinct, at = np.unique(eta, return_inverse=True)
    return np.asarray(behaviour.curve(positions, distinct)[at].reshape(sessions, positions), dtype=np.float32)


def _sessions(shown: Shown, name: str) -> NDArray[np.int32]:
    if shown.session is None:
        raise InputError(f"session: expected the numbers of the sessions for {name}, got None; give Shown(session=...)")
    return shown.session
