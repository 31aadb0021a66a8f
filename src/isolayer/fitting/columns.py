"""One column of numbers: scores, probabilities, labels or weights, read from any kind of array and checked.

Every public function of the package reads its columns with these functions, so that the same mistake gives the same
error. A column is a list, a numpy array, a Series of pandas or polars, an Arrow array or a tensor on the CPU.
Text, dates, masked values and complex numbers are refused rather than converted. Frames of several columns are read in
:mod:`isolayer.fitting.frames`, and columns of context values in :mod:`isolayer.fitting.categories`.
"""

from __future__ import annotations

import numbers as abstract
from collections.abc import Iterator, Mapping, Set
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.label_words import read_words

Floats = NDArray[np.float64]
Number = TypeVar("Number", np.float64, np.int64)

_REPAIR = "drop or repair those rows"
_KINDS = {"U": "text", "S": "bytes", "M": "dates", "m": "time differences", "c": "complex numbers", "V": "records"}


def numbers(name: str, values: Any, rows: int | None = None, *, dims: int | None = 1, booleans: bool = False) -> Floats:
    """A column as doubles, all of them finite, shape ``[n]``.

    Args:
        name: What to call the column in an error.
        values: The column.
        rows: How many rows it must have; by default any number.
        dims: How many dimensions it must have; None for any number but 0.
        booleans: Whether False and True may stand for 0 and 1.

    >>> numbers("score", [1, 2]).tolist()
    [1.0, 2.0]
    >>> numbers("score", ["1", "2"])
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: score: expected a column of numbers, got text; convert it to numbers
    """
    column = _doubles(name, shaped(name, array_of(name, values), dims), booleans=booleans)
    if rows is not None:
        same_length(name, len(column), rows)
    finite = np.isfinite(column)
    if not finite.all():
        refuse(name, column, finite, "finite numbers", _REPAIR)
    return column


def whole(name: str, values: Any, below: int, rows: int | None = None, *, dims: int = 1) -> NDArray[np.int64]:
    """Integers from 0 to ``below - 1``: positions, folds, indices.

    >>> whole("position", [0, 3], 3)
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: position: expected integers from 0 to 2, got 3 in row 1; number them from 0
    """
    column = shaped(name, array_of(name, values), dims)
    if column.dtype.kind not in "iu" and column.size:
        got = f"{column.dtype} values"
        raise InputError(f"{name}: expected integers from 0 to {below - 1}, got {got}; number them from 0")
    if rows is not None:
        same_length(name, len(column), rows)
    inside = (column >= 0) & (column < below)
    if not inside.all():
        refuse(name, column, inside, f"integers from 0 to {below - 1}", "number them from 0")
    return column.astype(np.int64, copy=False)


def probs(
    name: str, values: Any, rows: int | None = None, *, advice: str = "for logits, take the sigmoid first"
) -> Floats:
    """A column of probabilities, 0 and 1 included.

    >>> probs("prob", [0.5, 2.0])
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: prob: expected probabilities in [0, 1], got 2.0 in row 1; for logits, take the sigmoid
    first
    """
    column = numbers(name, values, rows)
    inside = (column >= 0) & (column <= 1)
    if not inside.all():
        refuse(name, column, inside, "probabilities in [0, 1]", advice)
    return column


def labels(name: str, values: Any, rows: int | None = None) -> Floats:
    """A column of labels: 0 and 1, booleans, yes and no, or soft labels, which are shares of a positive row.

    >>> labels("label", [False, True, 0.5]).tolist(), labels("label", ["no", "Yes"]).tolist()
    ([0.0, 1.0, 0.5], [0.0, 1.0])
    """
    column = numbers(name, read_words(name, array_of(name, values)), rows, booleans=True)
    inside = (column >= 0) & (column <= 1)
    if not inside.all():
        refuse(name, column, inside, "labels in [0, 1]", "give 0 and 1, or a soft label between them")
    return column


def weights(name: str, values: Any, rows: int | None = None) -> Floats:
    """A column of weights: numbers from 0 up, or booleans that keep a row or leave it out.

    >>> weights("weight", [1.0, -1.0])
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: weight: expected numbers >= 0, got -1.0 in row 1; drop those rows or clip their weights
    """
    column = numbers(name, values, rows, booleans=True)
    inside = column >= 0
    if not inside.all():
        refuse(name, column, inside, "numbers >= 0", "drop those rows or clip their weights")
    return column


def some(name: str, column: NDArray[Number]) -> NDArray[Number]:
    """The column, unless it is empty.

    >>> some("score", np.empty(0))
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: score: expected at least one row, got 0; check the filter that made this table
    """
    if column.size == 0:
        raise InputError(f"{name}: expected at least one row, got 0; check the filter that made this table")
    return column


def refuse(name: str, column: NDArray[Any], good: NDArray[np.bool_], rule: str, advice: str) -> None:
    """Raise an error that names the first value that is not good, and says how many more there are."""
    first = np.unravel_index(int(np.argmin(good)), good.shape)
    more = good.size - int(good.sum()) - 1
    where = f"in row {first[0]}" if good.ndim == 1 else f"at {[int(place) for place in first]}"
    got = f"{column[first]} {where}" + (f" and {more} more" if more else "")
    raise InputError(f"{name}: expected {rule}, got {got}; {advice}")


def same_length(name: str, length: int, rows: int) -> None:
    """Raise if a column does not have the length of the other columns.

    >>> same_length("weight", 2, 3)
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: weight: expected 3 rows like the other columns, got 2; align the columns
    """
    if length != rows:
        raise InputError(f"{name}: expected {rows} rows like the other columns, got {length}; align the columns")


def array_of(name: str, values: Any) -> NDArray[Any]:
    """Values as a numpy array of any type and shape; an error for masked values and for what numpy cannot read."""
    refuse_other(name, values)
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; tensors that need a gradient or a GPU
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise InputError(f"{name}: expected a column, got {reason}; convert it to an array") from error
    if array.ndim == 0 and array.dtype.kind not in "biuf":
        raise _no_column(name, values)
    return array


def refuse_other(name: str, values: Any) -> None:
    """Raise if something is not a column at all, or has masked values.

    >>> refuse_other("score", {1.0, 2.0})
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: score: expected a column, got a set; give a list, an array or a Series
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        masked = int(np.ma.getmaskarray(values).sum())
        raise InputError(f"{name}: expected no masked values, got {masked} of {values.size}; fill them or drop them")
    if hasattr(values, "toarray"):
        raise InputError(f"{name}: expected a dense column, got a sparse {type(values).__name__}; use .toarray()")
    if values is None or isinstance(values, str | bytes | Set | Mapping | Iterator):
        raise _no_column(name, values)


def _no_column(name: str, values: object) -> InputError:
    got = "None" if values is None else f"a {type(values).__name__}"
    return InputError(f"{name}: expected a column, got {got}; give a list, an array or a Series")


def shaped(name: str, array: NDArray[Any], dims: int | None = 1) -> NDArray[Any]:
    """The array, unless it has another number of dimensions."""
    if array.ndim == dims or (dims is None and array.ndim):
        return array
    rule, advice = ("an array", "give one") if dims is None else (f"{dims} dimensions", "reshape it")
    if dims == 1:
        rule, advice = "one dimension", "give one column, shape [n]"
    raise InputError(f"{name}: expected {rule}, got shape {array.shape}; {advice}")


def _doubles(name: str, column: NDArray[Any], *, booleans: bool) -> Floats:
    """The values as doubles, only if they are numbers; text that numpy could convert is refused."""
    if column.dtype.kind in _KINDS:
        got = _KINDS[column.dtype.kind]
        raise InputError(f"{name}: expected a column of numbers, got {got}; convert it to numbers")
    if column.dtype.kind == "b" and not booleans:
        raise InputError(f"{name}: expected a column of numbers, got booleans; convert it to numbers")
    if column.dtype.kind == "O":
        good = np.fromiter((_is_number(value, booleans=booleans) for value in column), bool, len(column))
        if not good.all():
            row = int(np.argmin(good))
            got = f"{column[row]!r:.60} in row {row}"
            raise InputError(f"{name}: expected a column of numbers, got {got}; convert it to numbers")
    try:
        with np.errstate(over="ignore"):  # too large numbers become infinite, and are refused later
            return column.astype(np.float64, copy=False)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{name}: expected numbers that fit a double, got {error}; rescale the column") from error


def _is_number(value: object, *, booleans: bool) -> bool:
    if isinstance(value, bool | np.bool_):
        return booleans
    return isinstance(value, abstract.Real | Decimal)
