"""Fields: columns of any type, reduced to a small number of levels. Levels are learned once and then looked up.

A number falls into one of up to 128 bins of about equal weight; each category (text, a boolean) is a level; a date is
split into its parts. Missing is a level too. A category that was not in the fit has no level, and is served without the
field. Scores and labels do not belong here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.categories import Column, KnownValues, encode
from isolayer.fitting.columns import refuse_other

Floats = NDArray[np.float64]
Levels = NDArray[np.intp]
Kind = Literal["number", "category"]
Holds = Literal["number", "category", "date", "nothing"]
Part = Literal["hour", "weekday", "month"]

BINS = 128
_BOUNDS: dict[Part, tuple[float, float]] = {"hour": (0, 23), "weekday": (0, 6), "month": (1, 12)}
_CALLED = {
    "weekday": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "month": ["", "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"],
}
_SPIKE = 0.3  # a value with more than this share of the rows has a bin of its own


@dataclass(frozen=True, eq=False)
class Field:
    """The levels of one column.

    Args:
        column: Name of the column.
        kind: ``"number"``, whose values are ordered, or ``"category"``.
        words: Categories, sorted, ``None`` last if missing was seen; empty for numbers.
        edges: Level ``i`` of a number is ``edges[i - 1] <= x < edges[i]``; the last level is missing.
        part: The part of a date that is the number.
        spike: Level of a value that very many rows have, and that is not smoothed with its neighbours; -1 if none.

    >>> age = Field.of("age", [20.0, 30.0, 30.0, None, 40.0])
    >>> age.edges.tolist(), age.levels_of([19.0, 30.0, None]).tolist()
    ([25.0, 35.0], [0, 1, 3])
    """

    column: str
    kind: Kind
    words: NDArray[Any] = field(default_factory=lambda: np.empty(0, object))
    edges: Floats = field(default_factory=lambda: np.empty(0))
    part: Part | None = None
    spike: int = -1

    @property
    def name(self) -> str:
        """Name of the field: that of the column, with the part of a date."""
        return f"{self.column}.{self.part}" if self.part else self.column

    @property
    def size(self) -> int:
        """Number of levels."""
        return len(self.words) if self.kind == "category" else len(self.edges) + 2

    @property
    def linked(self) -> NDArray[np.bool_]:
        """Whether neighbouring levels are smoothed together, ``[size - 1]``; the spike and missing are not."""
        linked = np.full(self.size - 1, self.kind == "number")
        if self.kind == "number":
            linked[-1] = False
            if self.spike >= 0:
                linked[max(self.spike - 1, 0) : self.spike + 1] = False
        return linked

    @classmethod
    def of(
        cls,
        column: str,
        values: Column,
        weight: Floats | None = None,
        *,
        part: Part | None = None,
        bins: int = BINS,
    ) -> Field:
        """Learn the levels of a column, or of a part of a column of dates, from weighted rows."""
        if part is None and kind_of(column, values) == "category":
            return cls(column, "category", words=encode(values, column)[0])
        numbers = number_of(column, values, part)
        edges, spike = _edges(numbers, np.ones(len(numbers)) if weight is None else weight, bins)
        return cls(column, "number", edges=edges, part=part, spike=spike)

    def levels_of(self, values: Column) -> Levels:
        """Level of each value, shape ``[n]``; -1 for a category that has none."""
        found = kind_of(self.column, values)
        if not self.takes(found):
            if not _all_missing(self.column, values):
                self.refuse(found)
            found = "nothing"
        if found == "nothing":
            return np.full(len(values), self.missing, np.intp)
        if self.kind == "category":
            return self._known.lookup(values, self.column).astype(np.intp)
        return self.level_of_numbers(number_of(self.column, values, self.part))

    @cached_property
    def _known(self) -> KnownValues:
        return KnownValues(self.words)

    def takes(self, found: Holds) -> bool:
        """Whether a column with values of this kind can be read as the fitted one.

        >>> Field("age", "number").takes("category"), Field("age", "number").takes("nothing")
        (False, True)
        """
        return found in ("nothing", "date" if self.part else self.kind)

    def refuse(self, found: str) -> NoReturn:
        """Raise, since a column has other values than in the fit."""
        wanted = "dates" if self.part else "numbers" if self.kind == "number" else "text or booleans"
        raise InputError(f"field {self.column}: expected {wanted} as when fitted, got {found}; convert the column")

    @property
    def missing(self) -> int:
        """Level of missing values; -1 if there were none."""
        if self.kind == "number":
            return self.size - 1
        return self.size - 1 if len(self.words) and self.words[-1] is None else -1

    def level_of_numbers(self, numbers: Floats) -> Levels:
        """Level of each number; NaN is missing."""
        level = np.searchsorted(self.edges, numbers, side="right").astype(np.intp)
        level[np.isnan(numbers)] = self.size - 1
        return level

    @property
    def _between_whole(self) -> bool:
        """Whether edges lie half-way between whole numbers, most of them between neighbours."""
        half = np.asarray(self.edges) % 1
        return bool(np.isin(half, (0.0, 0.5)).all() and (half == 0.5).mean() >= 0.5) if len(half) else True

    def word(self, first: int, last: int | None = None, *, span: tuple[float, float] | None = None) -> str:
        """Some neighbouring levels in words.

        Args:
            first: The first level.
            last: The last level; by default the first.
            span: Least and greatest value of the column, if they are known.

        >>> age = Field("age", "number", edges=np.array([25.0, 35.0]))
        >>> age.word(1), age.word(2), age.word(0, 1)
        ('25 to 35', '35 or more', 'below 35')
        >>> hour = Field("hour", "number", edges=np.arange(23) + 0.5)
        >>> hour.word(22, 23), hour.word(22, 23, span=(0, 23)), hour.word(7)
        ('22 or more', '22-23', '7')
        >>> children, member = (Field("x", "number", edges=np.array(edges)) for edges in ([0.5, 1.5, 3.0], [0.5]))
        >>> children.word(2), member.word(1)
        ('2', '1')
        >>> Field("day", "number", edges=np.arange(6) + 0.5, part="weekday").word(5, 6)
        'Saturday-Sunday'
        """
        last = first if last is None else last
        if first == self.missing:
            return "missing"
        if self.kind == "category":
            return str(self.words[first])
        flag = len(self.edges) == 1 and self.edges[0] == 0.5  # 0 and 1, as far as can be told
        low, high = span or (_BOUNDS[self.part] if self.part else (0.0, 1.0) if flag else (None, None))
        whole = self._between_whole and (low is None or low == round(low))
        below = self.edges[first - 1] if first > 0 else None
        above = self.edges[last] if last < len(self.edges) else None
        told = _whole_range(below, above, low, high) if whole else _range(below, above)
        called = _CALLED.get(self.part or "")
        return re.sub(r"\d+", lambda number: called[int(number[0])], told) if whole and called else told


def _range(below: float | None, above: float | None) -> str:
    """Numbers from one edge to another in words."""
    if below is None:
        return "any" if above is None else f"below {above:.6g}"
    return f"{below:.6g} or more" if above is None else f"{below:.6g} to {above:.6g}"


def _whole_range(below: float | None, above: float | None, low: float | None, high: float | None) -> str:
    """Whole numbers between two edges that lie half-way between some, in words."""
    first = low if below is None else float(np.ceil(below))
    last = high if above is None else float(np.ceil(above) - 1)
    if first is None or last is None:
        return "any" if first is last else f"{last:.6g} or less" if first is None else f"{first:.6g} or more"
    return f"{first:.6g}" if first == last else f"{first:.6g}{'-' if first >= 0 else ' to '}{last:.6g}"


def fields_of(columns: Mapping[str, Column], weight: Floats | None = None, *, bins: int = BINS) -> tuple[Field, ...]:
    """Learn the fields of some columns, by type; a column with a single value is uninformative and left out.

    >>> [field.name for field in fields_of({"device": ["tv", "web"], "always": [1, 1]})]
    ['device']
    """
    found = list[Field]()
    for name, values in columns.items():
        kind = kind_of(name, values)
        if kind == "nothing":
            continue
        parts: tuple[Part | None, ...] = get_args(Part) if kind == "date" else (None,)
        found += [Field.of(name, values, weight, part=part, bins=bins) for part in parts]
    kept = tuple(one for one in found if one.size > (1 if one.kind == "category" else 2) or _has_gap(one, columns))
    _refuse_twins(kept)
    return kept


def _refuse_twins(fields: Sequence[Field]) -> None:
    """Raise if a column has the same name as a part of a date."""
    parts = {one.name: one for one in fields if one.part}
    for one in fields:
        if not one.part and one.name in parts:
            date = parts[one.name]
            raise InputError(
                f"fields: expected different names, got the column {one.name!r} and the date {date.column!r}, whose "
                f"{date.part} has the same name; rename the column, or leave one of them out of the fields"
            )


def refuse_infinite(name: str, count: int) -> None:
    """Raise if a field has infinite values in a fit; in serving they are in its first and last level.

    >>> refuse_infinite("price", 3)
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: field price: expected finite numbers, got 3 infinite ones; replace them by null or by a
    number
    """
    if count:
        ones = "1 infinite one" if count == 1 else f"{count} infinite ones"
        raise InputError(f"field {name}: expected finite numbers, got {ones}; replace them by null or by a number")


def _has_gap(one: Field, columns: Mapping[str, Column]) -> bool:
    """Whether a number with a single value is missing in some rows, so that it is informative after all."""
    if one.kind == "category":
        return False
    missing = np.isnan(number_of(one.column, columns[one.column], one.part))
    return bool(missing.any() and not missing.all())


def levels_of(fields: Sequence[Field], columns: Mapping[str, Column]) -> list[Levels]:
    """Levels of every field, one array ``[n]`` per field."""
    return [one.levels_of(columns[one.column]) for one in fields]


def kind_of(name: str, values: Column) -> Holds:
    """The kind of a column, by its type: numbers, categories (text and booleans), dates, or only missing values.

    >>> kind_of("age", [1, None]), kind_of("device", ["tv"]), kind_of("gap", [None])
    ('number', 'category', 'nothing')
    """
    import pyarrow as pa

    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "iufbM":
        return "number" if dtype.kind in "iuf" else "category" if dtype.kind == "b" else "date"
    kind = as_arrow(name, values).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return "nothing"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "date"
    tests = (pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if any(test(kind) for test in tests):
        return "category"
    raise InputError(f"field {name}: expected numbers, text, booleans or dates, got {kind}; convert it or leave it out")


def _all_missing(name: str, values: Column) -> bool:
    """Whether a column of any type has only None and NaN."""
    import pyarrow.compute as pc

    array = as_arrow(name, values)
    return len(array) > 0 and bool(pc.all(array.is_null(nan_is_null=True)).as_py())


def as_arrow(name: str, values: Column) -> Any:
    """A column as an Arrow array, in which both NaN and None are missing."""
    import pyarrow as pa

    refuse_other(f"field {name}", values)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if hasattr(values, "to_arrow"):  # a polars Series
        return values.to_arrow()
    try:
        return pa.array(values, from_pandas=True)
    except OverflowError:
        return _beyond_64_bits(name, values)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"field {name}: expected values of one type, got {reason}; convert the column") from error


def _beyond_64_bits(name: str, values: Column) -> Any:
    """Integers that are too large for Arrow, as doubles; numbers of fields are compared as doubles."""
    import pyarrow as pa

    try:
        return pa.array([value if value is None else float(value) for value in values], pa.float64(), from_pandas=True)
    except OverflowError as error:
        raise InputError(
            f"field {name}: expected numbers in the range of doubles, got an integer of more than 308 digits; "
            "leave the row out"
        ) from error
    except (TypeError, ValueError) as error:
        raise InputError(f"field {name}: expected values of one type, got {error}; convert the column") from error


def number_of(name: str, values: Column, part: Part | None) -> Floats:
    """A column of numbers, or the part of a column of dates, as doubles; NaN is missing."""
    import pyarrow as pa

    dtype = getattr(values, "dtype", None)
    if part is None and isinstance(dtype, np.dtype) and dtype.kind in "iuf":
        return np.asarray(values).astype(np.float64, copy=False)
    array = as_arrow(name, values)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if part is not None:
        array = whole_seconds(array).cast(pa.int64())
    array = array.cast(pa.float64(), safe=False)  # integers beyond 2**53 become the nearest double
    numbers = np.asarray(array.to_numpy(zero_copy_only=False) if isinstance(array, pa.Array) else array.to_numpy())
    return numbers if part is None else part_of(numbers, part)


def whole_seconds(array: Any) -> Any:
    """Arrow dates or times in UTC without a zone, to the second, rounded down before 1970 too.

    >>> import pyarrow as pa
    >>> whole_seconds(pa.array([-1], pa.timestamp("us"))).to_pylist()
    [datetime.datetime(1969, 12, 31, 23, 59, 59)]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    unit = array.type.unit if pa.types.is_timestamp(array.type) else "ms"
    return pc.floor_temporal(array.cast(pa.timestamp(unit)), unit="second").cast(pa.timestamp("s"))


def part_of(seconds: Floats, part: Part) -> Floats:
    """Hour (0 to 23), weekday (Monday is 0) or month (1 to 12) of seconds since the start of 1970.

    >>> thursday = np.array([0.0, 3600.0, 86400.0 * 31])
    >>> [part_of(thursday, part).tolist() for part in ("hour", "weekday", "month")]
    [[0.0, 1.0, 0.0], [3.0, 3.0, 6.0], [1.0, 1.0, 2.0]]
    """
    if part == "hour":
        return np.asarray(np.floor(seconds / 3600.0) % 24)
    if part == "weekday":
        return np.asarray((np.floor(seconds / 86400.0) + 3) % 7)
    known = ~np.isnan(seconds)
    months = np.where(known, seconds, 0).astype("datetime64[s]").astype("datetime64[M]").astype(np.float64)
    return np.where(known, months % 12 + 1, np.nan)


def _edges(numbers: Floats, weight: Floats, bins: int) -> tuple[Floats, int]:
    """Edges between the bins of a column, each between two values that occur, and the bin of the spike."""
    known = ~np.isnan(numbers)
    values, place = np.unique(numbers[known], return_inverse=True)
    if not len(values):
        return np.empty(0), -1
    mass = np.bincount(place, weight[known])
    spike = int(mass.argmax()) if mass.max() > _SPIKE * mass.sum() and len(values) > 2 else -1
    if len(values) <= bins:
        return _between(values, np.arange(1, len(values))), spike
    if spike >= 0:
        mass[spike] = 0
    before = np.concatenate([[0.0], np.cumsum(mass)[:-1]]) / mass.sum()
    cuts = np.searchsorted(before, np.linspace(0, 1, bins + 1)[1:-1] - 1e-12)
    if spike >= 0:
        cuts = np.concatenate([cuts, [spike, spike + 1]])
    cuts = np.unique(cuts[(cuts > 0) & (cuts < len(values))])
    return _between(values, cuts), int(np.searchsorted(cuts, spike, side="right")) if spike >= 0 else -1


def _between(values: Floats, cuts: Iterable[int] | NDArray[np.int64]) -> Floats:
    """A number above ``values[cut - 1]`` and at most ``values[cut]``: the middle, if there is one."""
    cuts = np.asarray(cuts, np.int64)
    below, above = values[cuts - 1], values[cuts]
    with np.errstate(over="ignore", invalid="ignore"):
        middle = below / 2 + above / 2
    return np.where((middle > below) & (middle <= above), middle, above)
