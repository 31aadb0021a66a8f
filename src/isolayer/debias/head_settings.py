"""Settings of the debiasing models that depend on one another, checked together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isolayer.debias.ranking_loss import LOSSES, Ranking
from isolayer.debias.towers import Towers
from isolayer.errors import InputError
from isolayer.settings import choice, count, mapping, names


def checked_tasks(tasks: Sequence[str], decreasing: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Task names, distinct, and those of them that are decreasing.

    >>> checked_tasks(["click", "skip"], ["skip"])
    (('click', 'skip'), ('skip',))
    """
    given = names("tasks", [tasks] if isinstance(tasks, str) else tasks, advice="name each label once")
    if not given:
        raise InputError("tasks: expected at least one name, got none; name each label once")
    falling = [decreasing] if isinstance(decreasing, str) else decreasing
    return given, names("decreasing", falling, given, advice="name tasks only")


def check_wiring(anchor: str, wiring: str, towers: Towers | None) -> None:
    """Raise unless anchor, wiring and towers are compatible."""
    choice("anchor", anchor, ("joint", "detached"), advice="'joint' is the paper's")
    choice("wiring", wiring, ("curve", "parallel"), advice="use 'curve'")
    if wiring == "parallel" and anchor == "detached":
        raise InputError(
            "wiring: expected anchor='joint' with 'parallel', got 'detached'; nothing would train relevance"
        )
    if wiring == "parallel" and towers is not None:
        raise InputError("wiring: expected no towers with 'parallel', got some; use 'curve'")


def checked_loss(loss: Ranking, towers: Towers | None) -> Ranking:
    """One of the losses, if it is compatible with the towers."""
    choice("loss", loss, LOSSES, advice="'pointwise' is the log loss")
    if loss == "jrc" and towers is not None:
        raise InputError("loss: expected no towers with 'jrc', got some; leave them out, or use another loss")
    return loss


def checked_reference(
    reference: Mapping[str, int] | None, contexts: Mapping[str, int], *, hashed: bool
) -> dict[str, int]:
    """The reference id of every context feature: the middle one where none is given, and 0 if ids are hashed."""
    given = mapping("reference", {} if reference is None else reference, advice="give an id of each feature")
    for name, id_ in given.items():
        choice("reference", name, list(contexts), advice="name a context feature")
        most = {} if hashed else {"most": contexts[name] - 1}
        count(f"reference {name!r}", id_, 0, **most, advice="give an id of the feature")
    middle = {name: 0 if hashed else (size - 1) // 2 for name, size in contexts.items()}
    return middle | dict(given)
