"""Where the studies on real data look for it. Nothing is downloaded; loaders say what they miss and where to get it."""

from __future__ import annotations

import os
from pathlib import Path

_NEARBY = ("data", "../shared/data")  # tried in this order when the variable is not set


def data_path(name: str) -> Path:
    """A data set's folder or file under ``$ISOLAYER_DATA``, or else under ``data`` here or beside here.

    >>> data_path("kuairand_pure").name
    'kuairand_pure'
    """
    named = os.environ.get("ISOLAYER_DATA")
    folders = [Path(named)] if named else [Path(folder) for folder in _NEARBY]
    found = [folder / name for folder in folders if (folder / name).exists()]
    return found[0] if found else folders[0] / name


def kuairand_path() -> Path:
    """Where KuaiRand is: the whole set under ``kuairand``, or else the slice of it under ``kuairand_pure``.

    >>> kuairand_path().name.startswith("kuairand")
    True
    """
    whole = data_path("kuairand")
    return whole if whole.exists() else data_path("kuairand_pure")
