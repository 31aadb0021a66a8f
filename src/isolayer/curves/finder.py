"""Finds a curve: from the index of its parent and the code of one more context value to its own index."""

from __future__ import annotations

import numpy as np

from isolayer.fitting.categories import Codes

_DENSE = 1 << 22  # with up to this many combinations of codes a table is used, with more a search


class Finder:
    """Finds the index, within a depth, of the child of a parent with a given code; -1 if there is none."""

    def __init__(self, parent: Codes, code: Codes, codes: int) -> None:
        self.codes, key = codes, parent * codes + code
        self.place = np.argsort(key, kind="stable")
        self.key = key[self.place]
        size = (int(parent.max(initial=0)) + 1) * codes
        # One more entry, so that index -1 gives -1.
        self.table = np.full(size + 1, -1, np.int32) if size <= _DENSE else None
        if self.table is not None:
            self.table[key] = np.arange(len(key), dtype=np.int32)

    def find(self, parent: Codes, code: Codes) -> Codes:
        """Index of each child, shape ``[n]``."""
        key = np.where((parent < 0) | (code < 0), -1, parent * self.codes + code)
        if self.table is not None:
            return self.table[np.minimum(key, len(self.table) - 1)].astype(np.int64)
        guess = np.searchsorted(self.key, key).clip(max=len(self.key) - 1)
        return np.where(self.key[guess] == key, self.place[guess], -1)
