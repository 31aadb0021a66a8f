"""Context keys: columns of strings, integers or booleans, missing values allowed, turned into small integers and back.

A *vocabulary* is the sorted distinct values of one column: an array of ``int64``, ``bool`` or ``str``, or of objects
when ``None`` (missing) stands last. Columns come as numpy arrays, lists, pandas or polars Series or pyarrow arrays.
Where pyarrow is installed it does the hashing; without it the same answers come from Python. Nothing here knows of
scores.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError

Codes = NDArray[np.int64]
Column = Any  # whatever `encode` takes

_DENSE = 1 << 22  # up to so many possible codes a table beats hashing and sorting, however few rows there are


def context_names(contexts: Sequence[str]) -> tuple[str, ...]:
    """Names of context columns, each of them once.

    >>> context_names(["device", "device"])
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: contexts: expected every name once, got ('device', 'device'); name each column once
    """
    if isinstance(contexts, str):
        raise InputError(f"contexts: expected names in a tuple, got {contexts!r}; use ({contexts!r},)")
    names = tuple(contexts)
    if len(set(names)) < len(names):
        raise InputError(f"contexts: expected every name once, got {names}; name each column once")
    return names


def encode(column: Column, name: str = "context") -> tuple[NDArray[Any], Codes]:
    """Distinct values of a column, sorted, and the place of each row's value among them.

    Args:
        column: Strings, integers or booleans, shape ``[n]``; ``None``, NaN and nulls are missing.
        name: What to call the column in an error.

    Returns:
        The vocabulary ``[m]`` (``None`` last when a value is missing) and codes ``[n]`` in ``0 .. m - 1``.

    >>> vocabulary, codes = encode(["b", "a", None, "b"])
    >>> vocabulary.tolist(), codes.tolist()
    (['a', 'b', None], [1, 0, 2, 1])
    """
    numbers = _numbers(column, name)
    if numbers is not None:
        values, missing = numbers
        vocabulary, codes = _encode_numbers(values if missing is None else values[~missing])
    else:
        vocabulary, codes, missing = _encode_strings(column, name)
    if missing is None:
        return vocabulary, codes
    everything = np.full(len(missing), len(vocabulary))
    everything[~missing] = codes
    return np.array([*vocabulary.tolist(), None], dtype=object), everything


def lookup(column: Column, vocabulary: NDArray[Any], name: str = "context") -> Codes:
    """Place of each value in a vocabulary; -1 where it is not there.

    >>> lookup([7, 8, 5], np.array([5, 7])).tolist()
    [1, -1, 0]
    """
    known, own = typed(vocabulary)
    numbers = _numbers(column, name)
    if numbers is not None and numbers[1] is None and len(known) and numbers[0].dtype == known.dtype:
        return _lookup_numbers(numbers[0], known)
    found, codes = encode(column, name)
    values, missing = typed(found)
    if len(values) and len(known) and values.dtype.kind != known.dtype.kind:
        raise InputError(
            f"context {name}: expected {_KINDS[known.dtype.kind]} as when fitted, got {_KINDS[values.dtype.kind]}; "
            "convert the column"
        )
    place = np.full(len(found), -1)
    if len(known):
        guess = np.searchsorted(known, values).clip(max=len(known) - 1)
        place[: len(values)] = np.where(known[guess] == values, guess, -1)
    if missing and own:
        place[-1] = len(known)
    return place[codes]


def typed(vocabulary: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """The values of a vocabulary without ``None``, in their own type, and whether ``None`` was there.

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
        codes: One array ``[rows]`` a column.
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
    """Codes that occur, sorted, and the place of each row's code among them.

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
    return np.flatnonzero(occurs), place_of[code]


_KINDS = {"i": "integers", "b": "booleans", "U": "strings"}


def _numbers(column: Column, name: str) -> tuple[NDArray[Any], NDArray[np.bool_] | None] | None:
    """Values of an integer or boolean column and where they are missing; None when the column holds something else."""
    dtype = getattr(column, "dtype", None)
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biuf":
        return None
    values = np.asarray(column)
    if dtype.kind == "b":
        return values, None
    if dtype.kind in "iu":
        if dtype.kind == "u" and dtype.itemsize == 8 and len(values) and int(values.max()) > np.iinfo(np.int64).max:
            raise InputError(f"context {name}: expected integers below 2**63, got {values.max()}; use strings")
        return values.astype(np.int64, copy=False), None
    missing = np.isnan(values)
    values = np.where(missing, 0, values.astype(np.float64))
    unfit = values[(values != np.round(values)) | (np.abs(values) >= 2**53)]
    if len(unfit):
        raise InputError(f"context {name}: expected strings, integers or booleans, got {unfit[0]}; bin or convert it")
    return values.astype(np.int64), (missing if missing.any() else None)


def _encode_numbers(values: NDArray[Any]) -> tuple[NDArray[Any], Codes]:
    if values.dtype == bool or len(values) == 0:
        present, codes = present_codes(values.astype(np.int64), 2)
        return present.astype(values.dtype), codes
    lowest, highest = int(values.min()), int(values.max())
    if highest - lowest < max(_DENSE, 4 * len(values)):
        present, codes = present_codes(values - lowest, highest - lowest + 1)
        return present + lowest, codes
    present, codes = np.unique(values, return_inverse=True)
    return present, codes.astype(np.int64, copy=False)


def _lookup_numbers(values: NDArray[Any], known: NDArray[Any]) -> Codes:
    if known.dtype == bool:
        values, known = values.astype(np.int64), known.astype(np.int64)
    lowest, size = int(known[0]), int(known[-1]) - int(known[0]) + 1
    if size > max(_DENSE, 4 * len(values)):
        guess = np.searchsorted(known, values).clip(max=len(known) - 1)
        return np.where(known[guess] == values, guess, -1)
    limits = np.iinfo(np.int64)  # nothing is beyond these
    below, above = max(lowest - 1, limits.min), min(lowest + size, limits.max)
    table = np.full(size + 2, -1)  # one more at either end, for whatever is below or above
    table[known - below] = np.arange(len(known))
    return np.asarray(table[np.clip(values, below, above) - below])


def _encode_strings(column: Column, name: str) -> tuple[NDArray[Any], Codes, NDArray[np.bool_] | None]:
    """Vocabulary without None, codes of the rows that have a value, and which rows have none."""
    if "pyarrow" in sys.modules or find_spec("pyarrow") is not None:
        values, codes, missing = _hash_by_arrow(column, name)
    else:
        values, codes, missing = _hash_by_dict(column, name)
    values, _ = _numbers(values, name) or (values, None)  # whole numbers may come as floats
    if values.dtype.kind not in _KINDS:
        raise _unfit(name, values.dtype)
    used, codes = present_codes(codes, max(1, len(values)))  # a categorical may list what never occurs
    vocabulary, place = np.unique(values[used], return_inverse=True)
    return vocabulary, place.astype(np.int64, copy=False)[codes], missing


def _hash_by_arrow(column: Column, name: str) -> tuple[NDArray[Any], Codes, NDArray[np.bool_] | None]:
    import pyarrow as pa

    if hasattr(column, "to_arrow"):  # a polars Series
        column = column.to_arrow()
    try:
        array = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(
            f"context {name}: expected values of one type, got a mixture ({error}); convert the column"
        ) from error
    if isinstance(array, pa.ChunkedArray):
        array = array.unify_dictionaries().combine_chunks()
    array, missing = _without_missing(array)
    if not pa.types.is_dictionary(array.type):
        array = array.cast(pa.large_string()) if pa.types.is_string_view(array.type) else array
        array = array.dictionary_encode()
    kind = array.type.value_type
    if pa.types.is_integer(kind):
        values = array.dictionary.cast(pa.int64()).to_numpy(zero_copy_only=False)
    elif pa.types.is_boolean(kind) or pa.types.is_null(kind):
        values = array.dictionary.to_numpy(zero_copy_only=False).astype(bool)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        values = np.array(array.dictionary.to_pylist(), dtype=str)
    elif pa.types.is_floating(kind):
        values = array.dictionary.to_numpy(zero_copy_only=False)
    else:
        raise _unfit(name, kind)
    return values, array.indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False), missing


def _without_missing(array: Any) -> tuple[Any, NDArray[np.bool_] | None]:
    """The values of an Arrow array that are neither null nor NaN, and where it has none; None if it has all."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type) and pa.types.is_floating(array.type.value_type):
        array = array.dictionary_decode()  # NaN may be one of its words
    if not array.null_count and not pa.types.is_floating(array.type):
        return array, None
    missing = array.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    return (array.filter(~missing), missing) if missing.any() else (array, None)


def _hash_by_dict(column: Column, name: str) -> tuple[NDArray[Any], Codes, NDArray[np.bool_] | None]:
    rows = list(column)
    absent = np.fromiter((row is None or row != row for row in rows), bool, len(rows))
    rows = [row for row, none in zip(rows, absent, strict=True) if not none]
    kinds = {"b" if isinstance(row, bool | np.bool_) else np.asarray(row).dtype.kind for row in rows}
    if len(kinds) > 1:
        raise InputError(f"context {name}: expected values of one type, got a mixture; convert the column")
    codes = {row: code for code, row in enumerate(dict.fromkeys(rows))}
    code = np.fromiter(map(codes.__getitem__, rows), np.int64, len(rows))
    return np.array(list(codes) or np.empty(0, bool)), code, (absent if absent.any() else None)


def _unfit(name: str, kind: object) -> InputError:
    return InputError(f"context {name}: expected strings, integers or booleans, got {kind}; convert the column")
