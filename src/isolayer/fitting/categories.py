"""Context values: columns of strings, integers or booleans, missing values allowed, as small integers and back.

A *vocabulary* is the sorted distinct values of one column: an array of ``int64``, ``bool`` or ``str``, or of objects
when ``None`` (missing) is last. Columns can be numpy arrays, lists, pandas or polars Series or pyarrow arrays. Values
are compared in the same way here as in every engine that serves curves:

- Whole floats and decimals are integers, and NaN is missing, since columns of integers with gaps are often stored so.
- A value that equals no known value is unseen: 0.5, infinity, an integer beyond 64 bits, a string with NUL.
  :func:`lookup` refuses types, never values; :func:`encode` also refuses values that cannot be stored as keys.
- Booleans are not 0 and 1. Dates, times, durations, bytes and lists are refused: convert them to strings.

Scores do not belong here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.columns import refuse_other
from isolayer.settings import listed, shown

Codes = NDArray[np.int64]
Column = Any  # anything that `encode` accepts
Mask = NDArray[np.bool_]

KINDS = {"i": "integers", "b": "booleans", "U": "strings"}  # by the dtype of a vocabulary

_DENSE = 1 << 22  # with up to this many possible codes a table is faster than hashing and sorting, even for few rows
_LIMITS = np.iinfo(np.int64)


def context_names(contexts: Sequence[str]) -> tuple[str, ...]:
    """Names of context columns, each of them once.

    >>> context_names(["device", "device"])
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: contexts: expected every name once, got ('device', 'device'); name each column once
    """
    if isinstance(contexts, str):
        raise InputError(f"contexts: expected names in a tuple, got {contexts!r}; use ({contexts!r},)")
    names = listed(contexts)
    if names is None:
        raise InputError(f"contexts: expected names of columns, got {shown(contexts)}; name each column")
    if not all(isinstance(name, str) and name for name in names):
        raise InputError(f"contexts: expected names of columns, got {names}; name each column")
    if len(set(names)) < len(names):
        raise InputError(f"contexts: expected every name once, got {names}; name each column once")
    return names


def encode(column: Column, name: str = "context") -> tuple[NDArray[Any], Codes]:
    """Distinct values of a column, sorted, and the index of each row's value among them.

    Args:
        column: Strings, integers or booleans, shape ``[n]``; ``None``, NaN and nulls are missing.
        name: What to call the column in an error.

    Returns:
        The vocabulary ``[m]`` (``None`` last when a value is missing) and codes ``[n]`` in ``0 .. m - 1``.

    >>> vocabulary, codes = encode(["b", "a", None, "b"])
    >>> vocabulary.tolist(), codes.tolist()
    (['a', 'b', None], [1, 0, 2, 1])
    """
    read = _read(column, name)
    present = slice(None) if read.missing is None else ~read.missing
    if read.codes is None:
        _refuse(read, present, name)
        vocabulary, codes = _encode_numbers(read.values[present])
    else:
        used, codes = present_codes(read.codes[present], max(1, len(read.values)))  # a category may never occur
        _refuse(read, used, name)
        words = read.values[used]
        if (words[1:] > words[:-1]).all():  # as those of a file of curves are
            vocabulary = words
        else:
            vocabulary, place = np.unique(words, return_inverse=True)
            codes = place.astype(np.int64, copy=False)[codes]
    if read.missing is None or not read.missing.any():
        return vocabulary, codes
    everything = np.full(len(read.missing), len(vocabulary))
    everything[~read.missing] = codes
    return np.array([*vocabulary.tolist(), None], dtype=object), everything


def lookup(column: Column, vocabulary: NDArray[Any], name: str = "context") -> Codes:
    """Index of each value in a vocabulary; -1 if it is not in it. Use :class:`KnownValues` to look up many columns.

    >>> lookup([7, 8, 5], np.array([5, 7])).tolist()
    [1, -1, 0]
    """
    return KnownValues(vocabulary).lookup(column, name)


class KnownValues:
    """A vocabulary that many columns are looked up in: what a look-up needs is computed once, at the first one.

    Attributes:
        values: The values without ``None``, in their own type.

    >>> KnownValues(np.array([5, 7])).lookup([7, 8, 5]).tolist()
    [1, -1, 0]
    """

    def __init__(self, vocabulary: NDArray[Any]) -> None:
        self.values, self._own = typed(vocabulary)

    def lookup(self, column: Column, name: str = "context") -> Codes:
        """Index of each value of a column; -1 if it is not known."""
        known, read = self.values, _read(column, name)
        present = read.values if read.missing is None or read.codes is not None else read.values[~read.missing]
        if len(known) and len(present):
            _refuse_other_type(read, known, name)
            place = self._places(read.values)
            if read.unfit is not None:
                place[read.unfit] = -1
        else:
            place = np.full(max(1, len(read.values)), -1)
        place = place[: len(read.values)] if read.codes is None else place[read.codes]
        if read.missing is not None:
            place[read.missing] = len(known) if self._own else -1
        return place

    def _places(self, values: NDArray[Any]) -> Codes:
        known, near = self.values, self._near
        if near is None:
            guess = np.searchsorted(known, values).clip(max=len(known) - 1)
            return np.where(known[guess] == values, guess, -1)
        below, table = near
        above = min(below + len(table) - 1, _LIMITS.max)
        return table.take(np.clip(values.astype(np.int64, copy=False), below, above) - below).astype(np.int64)

    @cached_property
    def _near(self) -> tuple[int, NDArray[np.int32]] | None:
        """For integers near each other, the number below the first and the index of each number from there on."""
        known = self.values
        if known.dtype.kind == "U" or int(known[-1]) - int(known[0]) >= max(_DENSE, 4 * len(known)):
            return None
        below = max(int(known[0]) - 1, _LIMITS.min)
        table = np.full(int(known[-1]) - below + 2, -1, np.int32)  # one more at either end, for values beyond
        table[known.astype(np.int64, copy=False) - below] = np.arange(len(known), dtype=np.int32)
        return below, table


def typed(vocabulary: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """The values of a vocabulary without ``None``, in their own type, and whether it had ``None``.

    >>> typed(np.array([3, 5, None], dtype=object))
    (array([3, 5]), True)
    """
    if vocabulary.dtype != object:
        return vocabulary, False
    own = len(vocabulary) > 0 and vocabulary[-1] is None
    return np.array(vocabulary[: len(vocabulary) - own].tolist()), own


def combine(codes: Sequence[Codes], sizes: Sequence[int], rows: int) -> tuple[list[Codes], Codes]:
    """Distinct combinations of several columns of codes, in lexicographic order, and the combination of each row.

    Args:
        codes: One array ``[rows]`` per column.
        sizes: How many codes each column may have.
        rows: Number of rows, needed when there are no columns: then there is one combination.

    Returns:
        For each column the codes of the combinations ``[groups]``, and the group of each row ``[rows]``.

    >>> parts, group = combine([np.array([1, 0, 1]), np.array([0, 2, 0])], [2, 3], 3)
    >>> [part.tolist() for part in parts], group.tolist()
    ([[0, 1], [2, 0]], [1, 0, 1])
    """
    group, groups, parts = np.zeros(rows, np.int64), 1, list[Codes]()
    for code, size in zip(codes, sizes, strict=True):
        present, group = present_codes(group * size + code, groups * size)
        parts = [part[present // size] for part in parts] + [present % size]
        groups = len(present)
    return parts, group


def present_codes(code: Codes, size: int) -> tuple[Codes, Codes]:
    """Codes that occur, sorted, and the index of each row's code among them.

    >>> present, place = present_codes(np.array([9, 4, 9]), 10)
    >>> present.tolist(), place.tolist()
    ([4, 9], [1, 0, 1])
    """
    if size > max(_DENSE, 4 * len(code)):
        present, place = np.unique(code, return_inverse=True)
        return present, place.astype(np.int64, copy=False)
    occurs = np.zeros(size, bool)
    occurs[code] = True
    place_of = np.cumsum(occurs) - 1
    return np.flatnonzero(occurs), place_of.take(code)


class _Read(NamedTuple):
    """A column as it was read.

    Args:
        values: Integers, booleans or strings: one per row ``[n]``, or the distinct ones ``[m]`` if there are codes.
        codes: Which of the values each row has ``[n]``, or None.
        missing: Which rows have no value ``[n]``; None if all have one.
        unfit: Which of the values cannot be keys, and are stored as a placeholder; None if all can be keys.
        given: The original values, for an error.
        exact: Below this, floats represent integers exactly; None for other types.
    """

    values: NDArray[Any]
    codes: Codes | None
    missing: Mask | None
    unfit: Mask | None
    given: Any
    exact: int | None = None


def _read(column: Column, name: str) -> _Read:
    refuse_other(f"context {name}", column)
    given = column if isinstance(getattr(column, "dtype", None), np.dtype) else None
    if given is None or given.dtype.kind not in "biufc":
        return _read_by_arrow(column, name)
    given = np.asarray(given)
    if given.dtype.kind == "c":
        raise _unfit_type(name, given.dtype)
    if given.ndim != 1:
        raise InputError(f"context {name}: expected one column, got shape {given.shape}; give one dimension")
    values, missing, unfit, exact = _whole(given)
    return _Read(values, None, missing, unfit, given, exact)


def _whole(given: NDArray[Any]) -> tuple[NDArray[Any], Mask | None, Mask | None, int | None]:
    """Numbers as booleans or 64-bit integers; which are missing, which do not fit, and up to where floats are exact."""
    if given.dtype.kind in "bi":
        return given.astype(bool if given.dtype.kind == "b" else np.int64, copy=False), None, None, None
    if given.dtype.kind == "u":
        return given.astype(np.int64), None, _some(given > _LIMITS.max), None
    exact = 2 ** (int(np.finfo(given.dtype).nmant) + 1)
    missing, numbers = np.isnan(given), given.astype(np.float64)
    fit = (numbers == np.round(numbers)) & (np.abs(numbers) < exact)  # not of NaN
    return np.where(fit, numbers, 0).astype(np.int64), _some(missing), _some(~(fit | missing)), exact


def _some(mask: Mask) -> Mask | None:
    return mask if mask.any() else None


def _read_by_arrow(column: Column, name: str) -> _Read:
    """A column whose distinct values Arrow finds."""
    import pyarrow as pa

    array = _arrow(column, name)
    if pa.types.is_floating(array.type) or (pa.types.is_integer(array.type) and not array.null_count):
        return _read(array.to_numpy(zero_copy_only=False), name)  # these need no hashing; nulls become NaN
    if not pa.types.is_dictionary(array.type):
        if pa.types.is_string_view(array.type):  # Arrow cannot hash these
            array = array.cast(pa.large_string())
        if not _may_be_keys(array.type):
            raise _unfit_type(name, array.type)
        array = array.dictionary_encode()
    words = array.dictionary
    if not _may_be_keys(words.type):
        raise _unfit_type(name, words.type)
    codes = array.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if len(words) == 0 or pa.types.is_null(words.type):
        return _Read(np.zeros(0, bool), codes, np.ones(len(codes), bool), None, words)
    values, gone, unfit, exact = _words(words)
    return _Read(values, codes, _some(missing if gone is None else missing | gone[codes]), unfit, words, exact)


def _arrow(column: Column, name: str) -> Any:
    """A column as one Arrow array."""
    import pyarrow as pa

    if hasattr(column, "to_arrow"):  # a polars Series
        column = column.to_arrow()
    elif hasattr(column, "detach"):  # a tensor, whose elements Arrow does not know
        column = column.detach().cpu().numpy()
    elif isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind == "U" and _has_inner_nul(column):
        column = column.astype(object)  # Arrow would read such text up to the NUL
    try:
        array = column if isinstance(column, pa.Array | pa.ChunkedArray) else _array(column)
    except UnicodeEncodeError as error:
        raise InputError(f"context {name}: expected text, got invalid UTF-8 ({error}); clean it") from error
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(
            f"context {name}: expected values of one type, got a mixture ({error}); convert the column"
        ) from error
    return array.unify_dictionaries().combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _has_inner_nul(column: NDArray[Any]) -> bool:
    """Whether a string of a numpy array has a NUL before its end; NULs at the end are numpy's padding."""
    text = np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("="))
    characters = text.view(np.uint32).reshape(len(text), text.dtype.itemsize // 4)
    return bool(((characters[:, :-1] == 0) & (characters[:, 1:] != 0)).any())


def _array(column: Column) -> Any:
    import pyarrow as pa

    try:
        return pa.array(column, from_pandas=True)
    except OverflowError:  # an integer beyond 64 bits
        return pa.array(column, pa.decimal128(38, 0), from_pandas=True)


def _may_be_keys(kind: Any) -> bool:
    """Whether values of an Arrow type can be keys; the values of categories are checked later."""
    import pyarrow.types as types

    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_string)
    return any(test(kind) for test in (*tests, types.is_large_string, types.is_null))


def _words(words: Any) -> tuple[NDArray[Any], Mask | None, Mask | None, int | None]:
    """Distinct values of an Arrow array in numpy; which are missing or unfit, and up to where floats are exact."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    gone = _some(words.is_null().to_numpy(zero_copy_only=False))
    if types.is_decimal(words.type):
        values, unfit = _whole_decimals(words.to_pylist())
        return values, gone, unfit, None
    if types.is_string(words.type) or types.is_large_string(words.type):
        words = words.fill_null("")
        unfit = pc.match_substring(words, "\0").to_numpy(zero_copy_only=False)
        return np.array(words.to_pylist(), dtype=str), gone, _some(unfit), None
    numbers = words if types.is_floating(words.type) else words.fill_null(False if types.is_boolean(words.type) else 0)
    values, nan, unfit, exact = _whole(numbers.to_numpy(zero_copy_only=False))  # nulls among floats become NaN
    return values, nan if gone is None else gone, unfit, exact


def _whole_decimals(given: Sequence[Any]) -> tuple[NDArray[Any], Mask | None]:
    fit = [value is None or (value == int(value) and _LIMITS.min <= value <= _LIMITS.max) for value in given]
    values = [int(value) if value is not None and good else 0 for value, good in zip(given, fit, strict=True)]
    return np.array(values, np.int64), _some(~np.array(fit, bool))


def _refuse(read: _Read, chosen: Any, name: str) -> None:
    """Raise if one of the chosen values cannot be a key."""
    if read.unfit is None or not read.unfit[chosen].any():
        return
    first = np.arange(len(read.values))[chosen][read.unfit[chosen]][0]
    value = read.given[int(first)]
    value = value.as_py() if hasattr(value, "as_py") else value
    if isinstance(value, str):
        raise InputError(f"context {name}: expected strings without NUL, got {value!r}; clean the column")
    if read.exact is None and value == value // 1:
        raise _too_large(name, value)
    raise InputError(f"context {name}: expected strings, integers or booleans, got {value}; bin or convert it")


def _refuse_other_type(read: _Read, known: NDArray[Any], name: str) -> None:
    """Raise if a column does not have the type of the known values, or has floats too coarse to distinguish them."""
    kind = read.values.dtype.kind
    if kind != known.dtype.kind:
        raise InputError(
            f"context {name}: expected {KINDS[known.dtype.kind]} as when fitted, got {KINDS[kind]}; convert the column"
        )
    if read.exact is not None and max(-int(known[0]), int(known[-1])) >= read.exact:
        bits = read.exact.bit_length() - 1
        raise InputError(
            f"context {name}: expected integers, since some keys are beyond 2**{bits}, got "
            f"float{_FLOATS[bits]}; convert the column"
        )


_FLOATS = {53: 64, 24: 32, 11: 16}  # bits of a float by those of its fraction


def _encode_numbers(values: NDArray[Any]) -> tuple[NDArray[Any], Codes]:
    if values.dtype == bool or len(values) == 0:
        present, codes = present_codes(values.astype(np.int64), 2)
        return present.astype(values.dtype), codes
    lowest, highest = int(values.min()), int(values.max())
    if highest - lowest < max(_DENSE, 4 * len(values)):
        present, codes = present_codes(values - lowest, highest - lowest + 1)
        return present + lowest, codes
    if (values[1:] > values[:-1]).all():
        return values, np.arange(len(values))
    present, codes = np.unique(values, return_inverse=True)
    return present, codes.astype(np.int64, copy=False)


def _too_large(name: str, value: object) -> InputError:
    return InputError(
        f"context {name}: expected integers from -2**63 to 2**63 - 1, got {value}; use strings, or leave it out"
    )


def _unfit_type(name: str, kind: object) -> InputError:
    return InputError(f"context {name}: expected strings, integers or booleans, got {kind}; convert the column")
