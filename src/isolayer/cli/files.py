"""Files that commands write: whether they can be, before any work is done, and then all of them or none."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from isolayer.curves.parquet_io import whole_file
from isolayer.errors import InputError


def writable(path: Path, option: str) -> None:
    """Raise unless a file can stand at the path.

    >>> writable(Path("nowhere/log.parquet"), "--out")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --out: expected a folder that exists, got 'nowhere'; create it
    """
    if not path.parent.is_dir():
        raise InputError(f"{option}: expected a folder that exists, got {str(path.parent)!r}; create it")
    if path.is_dir():
        raise InputError(f"{option}: expected a file, got the folder {str(path)!r}; name a file in it")


def save_all(artefacts: dict[Path, Any]) -> None:
    """Save curves and sums under their paths; an error leaves every file as it was."""
    with ExitStack() as stack:
        parts = [stack.enter_context(whole_file(path)) for path in artefacts]
        for part, artefact in zip(parts, artefacts.values(), strict=True):
            artefact.save(part)
