"""Where the studies on real data look for it. Nothing is downloaded; loaders say what they miss and where to get it."""

from __future__ import annotations

import os
from pathlib import Path


def data_path(name: str) -> Path:
    """A data set's folder or file under ``$ISOLAYER_DATA``, or else under ``data`` in the current folder.

    The variable may list several folders, separated as in ``$PATH``; the first that has the data set is used.

    >>> data_path("kuairand_pure").name
    'kuairand_pure'
    """
    folders = os.environ.get("ISOLAYER_DATA", "data").split(os.pathsep)
    found = [Path(folder, name) for folder in folders if Path(folder, name).exists()]
    return found[0] if found else Path(folders[0], name)


def kuairand_path() -> Path:
    """Where KuaiRand is: the whole set under ``kuairand``, or else the slice of it under ``kuairand_pure``.

    >>> kuairand_path().name.startswith("kuairand")
    True
    """
    whole = data_path("kuairand")
    return whole if whole.exists() else data_path("kuairand_pure")
