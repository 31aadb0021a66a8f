"""Compressed columns: the tables and curves that a page draws on demand, as one text.

Ratios keep a precision of 0.05%, knot values a thousandth of a logit, standard deviations and weights a few percent:
finer than a screen shows. ``page.js`` decodes them.
"""

from __future__ import annotations

import base64
import gzip
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.fitting.categories import Codes
from isolayer.report.evidence import ContextTable, Dots
from isolayer.report.words import readables

Floats = NDArray[np.float64]

LOG_STEPS = 2000  # steps of a logarithm kept in 16 bits
COARSE_STEPS = 12  # the same in 8 bits
VALUE_STEPS = 1000  # steps of a logit
KNOTS = 650_000  # most knots of all curves in a page together


class Pack:
    r"""Named columns, written as a manifest and one text.

    >>> pack = Pack()
    >>> pack.add("codes", np.array([1, 2], np.uint16))
    >>> pack.manifest()
    [{'name': 'codes', 'type': 'Uint16Array', 'length': 2}]
    >>> gzip.decompress(base64.b64decode(pack.text()))
    b'\x01\x00\x02\x00'
    """

    _TYPES: ClassVar[dict[str, str]] = {
        "float32": "Float32Array",
        "int32": "Int32Array",
        "uint16": "Uint16Array",
        "uint8": "Uint8Array",
    }

    def __init__(self) -> None:
        self._columns: list[tuple[str, NDArray[Any]]] = []

    def add(self, name: str, column: NDArray[Any]) -> None:
        """Add a column of one of the types a page can read."""
        self._columns.append((name, column))
        self._columns.sort(key=lambda item: -item[1].dtype.itemsize)  # wide types first, so that all are aligned

    def manifest(self) -> list[dict[str, Any]]:
        """Name, type and length of each column in the order of the text."""
        return [
            {"name": name, "type": self._TYPES[column.dtype.name], "length": len(column)}
            for name, column in self._columns
        ]

    def text(self) -> str:
        """All columns, little-endian, compressed, as base64."""
        raw = b"".join(column.astype(column.dtype.newbyteorder("<")).tobytes() for _, column in self._columns)
        return base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode()


def logs(values: Floats) -> NDArray[np.uint16]:
    """Positive numbers in 16 bits, to 0.05%; 0 is 0, NaN is 65535.

    >>> logs(np.array([1.0, 0.0, np.nan])).tolist()
    [32768, 0, 65535]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.round(np.log(values) * LOG_STEPS) + 32768
    place = np.where(values == 0, 0, np.clip(place, 1, 65534))
    return np.asarray(np.where(np.isnan(values), 65535, place)).astype(np.uint16)


def coarse_logs(values: Floats) -> NDArray[np.uint8]:
    """Positive numbers in 8 bits, to 4%; 0 is 0.

    >>> coarse_logs(np.array([1.0, 0.0])).tolist()
    [98, 0]
    """
    with np.errstate(divide="ignore"):
        place = np.round(np.log(values) * COARSE_STEPS) + 98  # from 3e-4 to 5e5
    return np.asarray(np.where(values <= 0, 0, np.clip(place, 1, 255))).astype(np.uint8)


def add_table(pack: Pack, name: str, table: ContextTable) -> dict[str, Any]:
    """Pack a table; the result is its part of the page's JSON data."""
    words = []
    for place, key in enumerate(table.keys):
        vocabulary, codes = np.unique(np.array(readables(key)), return_inverse=True)
        words.append(vocabulary.tolist())
        pack.add(f"{name}.key{place}", codes.astype(np.int32))
    pack.add(f"{name}.weight", table.after.weight.astype(np.float32))
    pack.add(f"{name}.rate", logs(table.after.observed / table.after.weight))
    for when, part in (("before", table.before), ("after", table.after)):
        for column in ("ratio", "lower", "upper"):
            pack.add(f"{name}.{when}.{column}", logs(getattr(part, column)))
    pack.add(f"{name}.off", table.off.astype(np.float32))
    pack.add(f"{name}.curve", table.curve.astype(np.int32))
    return {"names": readables(table.names), "words": words, "total": table.total, "rows": len(table.curve)}


def add_dots(pack: Pack, dots: Dots) -> None:
    """Pack the observed rates of the first table."""
    pack.add("dots.many", np.diff(dots.start).astype(np.uint8))
    pack.add("dots.prob", logs(dots.prob))
    pack.add("dots.rate", logs(dots.rate))


def add_curves(pack: Pack, curves: Curves, wanted: Codes, span: tuple[float, float]) -> dict[str, Any]:
    """Pack some of the curves, each over the knots where it has data.

    Args:
        pack: The pack to add to.
        curves: The curves.
        wanted: Distinct numbers of the curves to pack; if they do not all fit, those with the most data are kept.
        span: Lowest and highest logit to show of curves without data.
    """
    first, last = _occupied(curves, wanted, span)
    order = np.argsort(-curves.count[wanted], kind="stable")
    fits = np.sort(order[np.cumsum((last - first + 1)[order]) <= KNOTS])
    rows, first, last = wanted[fits], first[fits], last[fits]
    size = last - first + 1
    row = np.repeat(rows, size)
    knot = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size) + np.repeat(first, size)
    fixed = np.round(curves.values[row, knot] * VALUE_STEPS).clip(-(2**30), 2**30).astype(np.int64)
    rise = np.diff(fixed, prepend=0)
    starts = np.cumsum(size) - size
    rise[starts] = 0
    pack.add("curves.row", rows.astype(np.int32))
    pack.add("curves.value", fixed[starts].astype(np.int32))
    pack.add("curves.first", first.astype(np.uint16))
    pack.add("curves.size", size.astype(np.uint16))
    pack.add("curves.rise", rise.clip(0, 65535).astype(np.uint16) if curves.monotone else rise.astype(np.int32))
    pack.add("curves.deviation", coarse_logs(np.sqrt(curves.variance[row, knot].astype(np.float64))))
    pack.add("curves.mass", coarse_logs(curves.knot_weight[row, knot].astype(np.float64)))
    grid = curves.grid
    steps = {"logSteps": LOG_STEPS, "coarseSteps": COARSE_STEPS, "valueSteps": VALUE_STEPS}
    return {"lower": grid.lower, "step": grid.step, "rows": len(rows), "leftOut": len(wanted) - len(rows), **steps}


def _occupied(curves: Curves, wanted: Codes, span: tuple[float, float]) -> tuple[Codes, Codes]:
    """First and last knot around the data of each curve."""
    some = curves.knot_weight[wanted] > 0
    knots = curves.values.shape[1]
    low, high = ((edge - curves.grid.lower) / curves.grid.step for edge in span)
    bare = ~some.any(1)
    first = np.where(bare, int(np.clip(np.floor(low), 0, knots - 2)), np.maximum(some.argmax(1) - 1, 0))
    last = np.where(bare, int(np.clip(np.ceil(high), 1, knots - 1)), knots - some[:, ::-1].argmax(1))
    return first, np.minimum(np.maximum(last, first + 1), knots - 1)
