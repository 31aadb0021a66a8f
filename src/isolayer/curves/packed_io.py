"""Packed curves as columns of a file: integers per curve, shapes in the facts. Some columns are read only when needed.

Besides the columns of :mod:`isolayer.curves.parquet_io`, a file of packed curves has ``deviation`` (for every curve,
how much of each shape of its level it adds to its parent: 32-bit integers, little endian), ``values`` (empty, or the
whole curve), the same for the logarithms of variances as ``spread`` and ``log_variance``, and ``knot_weight`` as bytes
in steps up to ``largest_weight``. Packing is explained in :mod:`isolayer.fitting.packed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.verified_file import Opened, digest_of
from isolayer.errors import InputError
from isolayer.fitting.packed import Packed, PackedLevel, Shapes
from isolayer.fitting.quantised import Quantised

LATER = ("spread", "log_variance", "knot_weight", "largest_weight")  # columns that scoring does not need
TAKEN = ("deviation", "values", "spread", "log_variance", "knot_weight", "largest_weight")
_WEIGHTS = {"values": "deviation", "log_variance": "spread"}


class Deferred:
    """A table that is read from its file when it is first used; it behaves as an array ``[curves, knots]``.

    Args:
        shape: Number of curves and of knots.
        make: Reads the table.
    """

    ndim = 2

    def __init__(self, shape: tuple[int, int], dtype: Any, make: Callable[[], Packed | Quantised]) -> None:
        self.shape, self.dtype, self._make = shape, np.dtype(dtype), make

    @cached_property
    def table(self) -> Packed | Quantised:
        """The table, read from the file at the first call."""
        return self._make()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return self.table[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.table.__array__(dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_make", "table"):
            raise AttributeError(name)
        return getattr(self.table, name)

    def __reduce__(self) -> Any:
        return _itself, (self.table,)


def _itself(table: Packed | Quantised) -> Packed | Quantised:
    return table


def undeferred(table: Any) -> Any:
    """The table itself, read from its file if it is deferred."""
    return table.table if isinstance(table, Deferred) else table


def is_packed(curves: Curves) -> bool:
    """Whether all three tables of the curves are packed."""
    return not any(isinstance(getattr(curves, name), np.ndarray) for name in ("values", "variance", "knot_weight"))


def packed_columns(curves: Curves) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables of packed curves as columns, and the facts that describe them."""
    values, variance = undeferred(curves.values), undeferred(curves.variance)
    weight: Quantised = undeferred(curves.knot_weight)
    columns = {**_columns(values, "values"), **_columns(variance, "log_variance")}
    columns["knot_weight"] = _bytes(weight.steps)
    columns["largest_weight"] = weight.largest
    packed = {"values": _facts(values), "log_variance": _facts(variance)}
    digests = {"variance": _digest(variance), "knot_weight": digest_of({}, [], [weight.steps, weight.largest])}
    whole = {"values": len(values.rows), "log_variance": len(variance.rows)}
    return columns, {"packed": packed, "whole": whole, "digests": digests}


def packed_arrays(curves: Curves) -> list[NDArray[Any]]:
    """The numbers of packed values, for a digest."""
    return _arrays(undeferred(curves.values))


def packed_tables(table: pa.Table, opened: Opened, parents: list[NDArray[np.int64]]) -> dict[str, Any]:
    """Values, variance and weights of knots; the last two are read when they are first used.

    Args:
        table: The columns that are read immediately, one row per curve.
        opened: The file.
        parents: Row of the parent of every curve, level by level, coarse to fine.
    """
    facts = opened.facts
    shape = (len(table), int(facts["knots"]))
    values = _packed(table, "values", facts, parents, shape)

    def later(*columns: str) -> pa.Table:
        return opened.read(columns).slice(0, len(table))

    def variance() -> Packed:
        with opened.naming():
            found = _packed(later("spread", "log_variance"), "log_variance", facts, None, shape)
            _refuse_unless_same("variance", _digest(found), facts)
        return found

    def weight() -> Quantised:
        with opened.naming():
            read = later("knot_weight", "largest_weight")
            found = Quantised(_integers(read["knot_weight"], np.uint8), read["largest_weight"].to_numpy())
            _refuse_unless_same("knot_weight", digest_of({}, [], [found.steps, found.largest]), facts)
            if found.shape != shape or not (np.isfinite(found.largest) & (found.largest >= 0)).all():
                raise InputError("knot_weight: expected it finite and not negative, got something else; make it again")
        return found

    return {
        "values": values,
        "variance": Deferred(shape, np.float64, variance),
        "knot_weight": Deferred(shape, np.float32, weight),
    }


def _refuse_unless_same(name: str, digest: str, facts: Mapping[str, Any]) -> None:
    if digest != facts["digests"][name]:
        raise InputError(f"{name}: expected the digest of what was saved, got another; write it again")


def _columns(table: Packed, name: str) -> dict[str, Any]:
    most = max((level.weights.shape[1] for level in table.levels), default=0)
    weights = np.zeros((len(table), most), np.int32)
    for level in table.levels:
        weights[level.first : level.last, : level.weights.shape[1]] = level.weights
    sizes = np.zeros(len(table) + 1, np.int32)
    sizes[1 + table.rows] = table.shape[1]
    kind = pa.list_(pa.field("element", pa.float64(), nullable=False))
    offsets, flat = pa.array(np.cumsum(sizes, dtype=np.int32)), pa.array(table.whole.reshape(-1))
    lists = pa.ListArray.from_arrays(offsets, flat, type=kind)
    return {_WEIGHTS[name]: _bytes(weights), name: lists}


def _bytes(numbers: NDArray[Any]) -> pa.Array:
    """Rows of integers ``[n, k]`` as a column of bytes."""
    little = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<"))
    kind = pa.binary(little.dtype.itemsize * little.shape[1])
    return pa.FixedSizeBinaryArray.from_buffers(
        kind, len(little), [None, pa.py_buffer(little.reshape(-1).view(np.uint8))]
    )


def _integers(column: pa.ChunkedArray, dtype: Any) -> NDArray[Any]:
    """The rows of integers in a column that :func:`_bytes` made."""
    array = column.combine_chunks()
    width = array.type.byte_width
    flat = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * width :][: len(array) * width]
    kind = np.dtype(dtype).newbyteorder("<")
    return np.asarray(flat.view(kind).reshape(len(array), width // kind.itemsize).astype(dtype, copy=False))


def _facts(table: Packed) -> list[dict[str, Any]]:
    return [
        {"first": level.first, "rows": len(level.weights), "mean": level.shapes.mean.tolist()}
        | {"shapes": level.shapes.shapes.tolist()}
        for level in table.levels
    ]


def _packed(
    table: pa.Table,
    name: str,
    facts: Mapping[str, Any],
    parents: list[NDArray[np.int64]] | None,
    shape: tuple[int, int],
) -> Packed:
    """The table that :func:`_columns` and :func:`_facts` describe."""
    lists = table[name].combine_chunks()
    sizes = np.diff(lists.offsets.to_numpy())
    rows = np.flatnonzero(sizes)
    whole = np.asarray(lists.flatten().to_numpy())
    if (sizes[rows] != shape[1]).any():
        raise InputError(f"lists: expected {shape[1]} knots in each, got a different number; write it again")
    weights = _integers(table[_WEIGHTS[name]], np.int32)
    levels, in_a_level = list[PackedLevel](), np.zeros(shape[0], bool)
    in_a_level[rows] = True
    for told in facts["packed"][name]:
        first, size = int(told["first"]), int(told["rows"])
        shapes = Shapes(np.array(told["mean"], np.float64), np.array(told["shapes"], np.float64))
        above = None if parents is None else np.concatenate(parents)[first : first + size].astype(np.int32)
        good = shapes.mean.shape == (shape[1],) and shapes.shapes.shape[1:] == (shape[1],) and first > 0
        if not good or first + size > shape[0] or (above is not None and (above >= first).any()):
            raise InputError(
                "shapes: expected one value per knot and rows of the table, got something else; write it again"
            )
        own = weights[first : first + size, : len(shapes.shapes)]
        if own.shape != (size, len(shapes.shapes)):
            raise InputError("shapes: expected a weight for each shape, got fewer; write it again")
        levels.append(PackedLevel(first, shapes, np.ascontiguousarray(own), above))
        in_a_level[first : first + size] = True
    if not in_a_level.all():
        raise InputError("values: expected every curve, got some without; write it again")
    return Packed(shape, tuple(levels), rows, whole.reshape(-1, shape[1]), parents is None)


def _digest(table: Packed) -> str:
    return digest_of({}, [], _arrays(table))


def _arrays(table: Packed) -> list[NDArray[Any]]:
    numbers = [array for level in table.levels for array in (level.shapes.mean, level.shapes.shapes, level.weights)]
    return [*numbers, table.rows, table.whole]
