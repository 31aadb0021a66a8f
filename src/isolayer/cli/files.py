"""Files that commands write: never over a file that they read, and either all of them or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isolayer.storage import files_of, refuse_same_file, whole_files, writable


def check_output(out: Path, option: str, *inputs: str | Path) -> None:
    """Raise unless a file can be written at the path and it is not one of the inputs, even under another name.

    Args:
        out: The file to write.
        option: The option that names it, for the error.
        inputs: Paths, globs or folders that the command reads.

    >>> check_output(Path("nowhere/log.parquet"), "--out")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --out: expected a folder that exists, got 'nowhere'; create it
    """
    writable(out, option)
    refuse_same_file(out, *(file for one in inputs for file in files_of(str(one))), name=option)


def save_all(artefacts: dict[Path, Any]) -> None:
    """Save curves and sums under their paths together: after an error or a crash every file is as it was."""
    with whole_files(*artefacts) as parts:
        for part, artefact in zip(parts, artefacts.values(), strict=True):
            artefact.save(part)
