"""The settings of boosted trees that `tree_tuning` has chosen, read from what is committed of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from research.debias_methods import Setting
from research.tree_methods import KNOWN, TRIED

READS = ("tree-tuning",)  # so that what was chosen counts among what a unit has run with
RESULTS = Path(__file__).parents[1] / "docs" / "reproduced" / "tree-tuning.json"


@cache
def tuned() -> dict[str, dict[str, Setting]]:
    """The best setting of each method in each click model, as far as `tree_tuning` was run."""
    if not RESULTS.is_file():
        return {}
    found: dict[str, dict[str, Setting]] = json.loads(RESULTS.read_text())["series"]["best"]
    return found


def setting_of(clicks: str, method: str) -> Setting:
    """The setting of a method in worlds of a click model: that of position bias where none was chosen in it.

    The default where nothing was chosen, or where what was chosen is no longer among the settings tried.
    """
    chosen = tuned().get(clicks if clicks in KNOWN else KNOWN[0], {}).get(method)
    return chosen if chosen in TRIED[method] else TRIED[method][0]
