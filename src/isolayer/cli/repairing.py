"""The command that corrects what an audit found. It never overwrites a calibrator that already exists."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from isolayer.curves.curves import Curves

DEFAULT_OUT = Path("curves.parquet")  # where `fit` writes
_PASSED_ON = ("weight", "negative_rate", "cluster", "date")


def repair(found: Any, settings: Mapping[str, Any], fitted: Curves | None = None) -> str | None:
    """The command that corrects what was found; None if there is nothing that may be corrected.

    Args:
        found: The audit.
        settings: The options of the audit with the values used; those that `fit` also has are passed on.
        fitted: The calibrator that was audited; its contexts and fields are kept.
    """
    if found.holds or not (found.repair_fields or found.overall.off):
        return None
    contexts, fields = _allowed(found, fitted)
    words = ["isolayer", "fit", *settings["log"], "--score", settings["score"], "--label", settings["label"]]
    words += ["--scale", settings["scale"], *_passed_on(settings)]
    words += (
        _listed("--contexts", contexts)
        + _listed("--fields", [*fields, *found.repair_fields])
        + _listed("--audit-only", found.audit_only)
    )
    if fitted is not None:
        words += ["--missing", "own"] if fitted.source.get("missing") == "own" else []
        words += [] if fitted.monotone else ["--no-monotone"]
    out = _free(settings["curves"] or DEFAULT_OUT, taken=fitted is not None)
    words += [] if out == DEFAULT_OUT else ["--out", out]
    return shlex.join(map(str, words))


def _allowed(found: Any, fitted: Curves | None) -> tuple[list[str], list[str]]:
    """Contexts and fields of a calibrator to keep, without the fields that the audit found."""
    if fitted is None:
        return [], []
    contexts = [name for name in fitted.contexts if name not in found.audit_only]
    return contexts, [name for name in fitted.fields if name not in {*found.audit_only, *found.repair_fields}]


def what_it_does(command: str | None, settings: Mapping[str, Any], fitted: Curves | None) -> list[str]:
    """What to know before running the command, if a calibrator was audited."""
    if command is None or fitted is None:
        return []
    anew = "fits a new calibrator of the raw score" + (" with the same contexts" if fitted.contexts else "")
    kept = f"does not change {settings['curves']}; to include earlier days, add their logs to the command"
    return [f"the command below {anew} to these rows only, and {kept}"]


def _passed_on(settings: Mapping[str, Any]) -> list[Any]:
    given = [word for name in _PASSED_ON if settings.get(name) is not None for word in (_option(name), settings[name])]
    if settings.get("weight") is not None and settings["weight_kind"] != "frequency":
        given += ["--weight-kind", settings["weight_kind"]]
    return given + (["--on-bad-rows", "drop"] if settings.get("on_bad_rows") == "drop" else [])


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _listed(option: str, names: Sequence[str]) -> list[str]:
    """An option with the names of columns, as `fit` reads them.

    >>> _listed("--fields", ["hour", "device"]), _listed("--fields", ["a,b", "c"]), _listed("--fields", [])
    (['--fields', 'hour,device'], ['--fields', '["a,b", "c"]'], [])
    """
    plain = all(name == name.strip() and name and "," not in name and not name.startswith("[") for name in names)
    given = ",".join(names) if plain else json.dumps(list(names), ensure_ascii=False)
    return [option, given] if names else []


def _free(path: Path, *, taken: bool) -> Path:
    """A file that does not exist: the path itself unless it is taken, or else one named after it."""
    if not taken and not path.exists():
        return path
    names = (
        path.with_name(f"{path.stem}-repaired{'' if number == 1 else f'-{number}'}.parquet") for number in count(1)
    )
    return next(name for name in names if not name.exists())
