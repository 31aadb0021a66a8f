"""Files that commands write: all of them or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isolayer.storage import whole_files, writable

__all__ = ["save_all", "writable"]


def save_all(artefacts: dict[Path, Any]) -> None:
    """Save curves and sums under their paths, together: an error or a kill leaves every file as it was."""
    with whole_files(*artefacts) as parts:
        for part, artefact in zip(parts, artefacts.values(), strict=True):
            artefact.save(part)
