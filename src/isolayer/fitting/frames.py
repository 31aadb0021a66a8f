"""Frames: columns by name from pandas, polars, Arrow tables, DuckDB relations and mappings, read through narwhals.

Lazy frames are collected once, with only the columns that are needed. The numbers in a column are checked in
:mod:`isolayer.fitting.columns`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
from narwhals.exceptions import DuplicateError
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.categories import encode
from isolayer.fitting.columns import array_of, numbers, probs

Floats = NDArray[np.float64]


class Rows(NamedTuple):
    """The rows of an estimator's ``X``.

    ``score`` has shape ``[n]``; ``context`` and ``other`` are columns by name. ``names`` are the columns of the frame,
    None when ``X`` is an array, and ``score_name`` is the one that was read as the score.
    """

    score: Floats
    context: Mapping[str, Any]
    other: Mapping[str, Any]
    names: list[str] | None = None
    score_name: str | None = None


def read_rows(
    X: Any, contexts: Sequence[str] = (), *, scale: str = "logit", score: str | None = None, other: Sequence[str] = ()
) -> Rows:
    """Read what an estimator takes: an array of scores, or a frame with the score and further columns.

    Args:
        X: Scores ``[n]`` or ``[n, 1]``, or a frame.
        contexts: The context columns.
        scale: Whether scores are logits or probabilities.
        score: The score column; by default the one called ``score``, or else the only column without another meaning.
        other: Further columns with another meaning.

    >>> read_rows({"raw": [0.5], "device": ["tv"]}, ["device"]).score.tolist()
    [0.5]
    """
    named, names = [*contexts, *other], column_names(X)
    if names is None and (named or score):
        wanted = [score, *named] if score else named
        raise InputError(f"X: expected a frame with the columns {wanted}, got {_kind(X)}; give a frame or a dict")
    if names is None:
        return Rows(_scores("score", _flat(X), scale), {}, {})
    chosen = score or _score_name(names, named)
    read = columns(X, [chosen, *named])
    context = {name: read[name] for name in contexts}
    return Rows(_scores(chosen, read[chosen], scale), context, {name: read[name] for name in other}, names, chosen)


def column_names(frame: Any) -> list[str] | None:
    """Names of a frame's columns; None for what is not a frame.

    >>> column_names({"score": [1.0]}), column_names(np.zeros(3))
    (['score'], None)
    """
    if isinstance(frame, Mapping) and not hasattr(frame, "shape"):  # some of SciPy's sparse arrays are mappings
        return list(frame)
    found = _frame(frame)
    return None if found is None else _names(found)


def column(frame: Any, name: str) -> Any:
    """One column of a frame, as the frame gives it; see :func:`columns`.

    >>> column({"score": [1.0]}, "score")
    [1.0]
    """
    return columns(frame, [name])[name]


def columns(frame: Any, names: Iterable[str]) -> dict[str, Any]:
    """Some columns of a frame by name; a lazy frame is collected once.

    >>> columns({"score": [1.0]}, ["device"])
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: column device: expected it in the frame, got only ['score']; add it
    """
    wanted = list(dict.fromkeys(names))
    found = frame if isinstance(frame, Mapping) else _frame(frame)
    if found is None:
        such = f", such as {{{wanted[0]!r}: values}}" if wanted else ""
        raise InputError(
            f"frame: expected a frame with the columns {wanted}, got {_kind(frame)}; give a dict of columns{such}"
        )
    present = list(found) if isinstance(found, Mapping) else _names(found)
    for name in wanted:
        if name not in present:
            raise InputError(f"column {name}: expected it in the frame, got only {present}; add it")
    if isinstance(found, nw.LazyFrame):
        found = _collected(found, wanted, present)
    if isinstance(found, nw.DataFrame):
        return {name: found.get_column(name).to_native() for name in wanted}
    return {name: found[name] for name in wanted}


def times(name: str, values: Any, half_life: float | timedelta) -> tuple[Floats, float]:
    """A time column as numbers, and a half-life in the same unit: seconds for datetimes.

    >>> times("day", [1, 2], 7)
    (array([1., 2.]), 7.0)
    """
    series = nw.from_native(values, pass_through=True, allow_series=True)
    found = array_of(name, series.to_numpy() if isinstance(series, nw.Series) else values)  # time zones become UTC
    if found.dtype.kind == "M":
        if not isinstance(half_life, timedelta):
            raise InputError(f"half_life: expected a timedelta for the datetimes of {name}, got {half_life}; give one")
        seconds = (found - np.datetime64("1970-01-01", "us")) / np.timedelta64(1, "s")
        return numbers(name, seconds), half_life.total_seconds()
    if isinstance(half_life, timedelta):
        raise InputError(f"half_life: expected a number in the units of {name}, got {half_life}; give a number")
    return numbers(name, found), float(half_life)


def refuse_missing(context: Mapping[str, Any]) -> None:
    """Raise when a context column has a missing value.

    >>> refuse_missing({"device": ["tv", None]})
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: context device: expected no missing values, got 1 of 2 rows; fill them, or use
    missing="own" to give them a curve of their own
    """
    for name, values in context.items():
        vocabulary, codes = encode(values, name)
        if vocabulary.dtype == object and len(vocabulary) and vocabulary[-1] is None:
            rows = int((codes == len(vocabulary) - 1).sum())
            raise InputError(
                f"context {name}: expected no missing values, got {rows} of {len(codes)} rows; fill them, or use "
                'missing="own" to give them a curve of their own'
            )


def _frame(frame: Any) -> nw.DataFrame[Any] | nw.LazyFrame[Any] | None:
    """A frame of any library behind one interface; None for what is not a frame."""
    try:
        found = nw.from_native(frame, pass_through=True)
    except DuplicateError:
        names = getattr(frame, "column_names", None) or frame.columns
        twice = [str(name) for name, count in Counter(names).items() if count > 1]
        raise InputError(f"frame: expected every column name once, got {twice} more than once; rename them") from None
    return found if isinstance(found, nw.DataFrame | nw.LazyFrame) else None


def _names(frame: nw.DataFrame[Any] | nw.LazyFrame[Any]) -> list[str]:
    return frame.columns if isinstance(frame, nw.DataFrame) else frame.collect_schema().names()


def _collected(frame: nw.LazyFrame[Any], wanted: list[str], present: list[str]) -> nw.DataFrame[Any]:
    """The wanted columns of a lazy frame; all columns if its engine could confuse two names."""
    import pyarrow as pa

    if len({name.casefold() for name in present}) == len(present):
        frame = frame.select(*wanted)
    native = frame.to_native()
    if hasattr(native, "__arrow_c_stream__"):  # DuckDB: its own stream, since narwhals' leaves types behind at exit
        return nw.from_native(pa.table(native), eager_only=True)
    return frame.collect()


def _score_name(names: list[str], named: Sequence[str]) -> str:
    rest = [name for name in names if name not in named]
    if "score" in rest or len(rest) == 1:
        return "score" if "score" in rest else rest[0]
    raise InputError(
        f"X: expected one column besides {list(named)}, or one called 'score', got {rest}; name it with score="
    )


def _flat(X: Any) -> NDArray[Any]:
    """Scores of an array ``[n]`` or ``[n, 1]``."""
    array = array_of("X", X)
    if array.ndim != 1 and array.shape[1:] != (1,):
        raise InputError(f"X: expected scores of shape [n] or [n, 1], got {array.shape}; give one column of scores")
    return array.reshape(-1)


def _scores(name: str, values: Any, scale: str) -> Floats:
    if scale == "prob":
        return probs(name, values, advice='for logits use scale="logit"')
    return numbers(name, values)


def _kind(value: object) -> str:
    return "an array" if isinstance(value, np.ndarray | list | tuple) else f"a {type(value).__name__}"
