"""What the trials of a search have in common: stored in its folder, and compared before the search is continued.

A trial of another log, of other tasks or of another number of passes is not comparable, so a folder holds one search.
What differs between the trials of a search, its settings, is in the name of each trial's folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

from isolayer.errors import InputError
from isolayer.storage import content_id, whole_file
from isolayer.training.columns import Columns
from isolayer.training.parquet_batches import ParquetLogs
from isolayer.training.train import Fit

FACTS = "search.json"
_OF_TRIALS = ("lr", "decay", "progress")  # parts of `Fit` that belong to a trial, or that change no result
_LONGEST = 80  # characters of a value that an error shows


def search_facts(
    logs: Any, columns: Mapping[str, Any], fit: Fit, truth: str | None, setup: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that all trials of a search depend on, as JSON values.

    A log is known by all the content of its files, so one that was only moved is still the same.

    Args:
        logs: The log.
        columns: Columns as `train` takes them.
        fit: How to train.
        truth: The column of true relevance.
        setup: What else the models depend on.
    """
    known = columns.get("vocabularies") or {}
    facts = {
        "log": [content_id(file) for file in ParquetLogs(logs, Columns([], [], [])).files],
        "truth": truth,
        **{name: value for name, value in columns.items() if name != "vocabularies"},
        "vocabularies": {name: digest(list(values.values)) for name, values in known.items()},
        **{name: value for name, value in asdict(fit).items() if name not in _OF_TRIALS},
        **setup,
    }
    plain: dict[str, Any] = json.loads(json.dumps(facts, default=str))
    return plain


def digest(value: Any) -> str:
    """A short digest of JSON values.

    >>> digest({"lr": 0.1, "alpha": 0}) == digest({"alpha": 0, "lr": 0.1}) != digest({"lr": 0.1})
    True
    """
    return blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def claim(folder: Path, facts: Mapping[str, Any], *, trials: bool) -> None:
    """Store the facts of a search in its folder; an `InputError` if the folder holds another search.

    Args:
        folder: The folder of the search.
        facts: What `search_facts` returned.
        trials: Whether the folder has trials.
    """
    path = folder / FACTS
    if path.is_file():
        try:
            earlier = dict(json.loads(path.read_text()))
        except (TypeError, ValueError) as error:
            raise InputError(_refusal(folder, "a damaged file search.json")) from error
        other = _differences(earlier, facts)
        if other:
            raise InputError(_refusal(folder, f"one with {', '.join(other)}"))
    elif trials:
        raise InputError(_refusal(folder, "trials without search.json, which says what they were trained on"))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_text(json.dumps(facts, indent=1) + "\n")


def _differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two searches, in words.

    >>> _differences({"tasks": ["click"], "log": "1"}, {"tasks": ["skip"], "log": "2"})
    ["tasks ['click'] instead of ['skip']", 'another log']
    """
    names = [name for name in {**earlier, **now} if earlier.get(name) != now.get(name)]
    found = []
    for name in names:
        words = f"{name} {earlier.get(name)} instead of {now.get(name)}"
        hidden = name in ("log", "vocabularies") or len(words) > _LONGEST
        found.append(f"another {name}" if name == "log" else f"other {name}" if hidden else words)
    return found


def _refusal(folder: Path, got: str) -> str:
    return (
        f"folder: expected the same search in {str(folder)!r}, got {got}; name another folder (--out), or delete this "
        "one to start again"
    )
