"""Vocabularies: the id of each value of a column, so that logs may contain text, or numbers that do not start at 0.

They are built from the log before training, and stored with the model. A value that was not in that log is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from isolayer.errors import InputError

MOST = 1_000_000  # most values of one column that get an id; if there are more, the rarest are unknown


@dataclass(frozen=True)
class Vocabulary:
    """The values of a column; the id of a value is its index.

    Args:
        values: Distinct integers or texts, in ascending order.

    >>> Vocabulary((1, 2, 3)).ids(pa.chunked_array([[3, 1, 9, None]]), "position").tolist()
    [2, 0, -1, -1]
    """

    values: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def _set(self) -> Any:
        return pa.array(self.values, pa.int64() if all(isinstance(one, int) for one in self.values) else pa.string())

    def ids(self, column: Any, name: str) -> NDArray[np.int64]:
        """The id of each row's value; -1 for a value that is not in the vocabulary, and for null.

        Args:
            column: A column of a pyarrow table.
            name: Its name, for the error.
        """
        found = pc.index_in(_plain(column, name, self._set.type), value_set=self._set)
        return np.asarray(found.fill_null(-1).to_numpy()).astype(np.int64)


def vocabularies(tables: Iterable[Any], names: Sequence[str], *, most: int = MOST) -> dict[str, Vocabulary]:
    """The vocabularies of some columns of a log.

    Args:
        tables: The log in parts, as pyarrow tables.
        names: The columns.
        most: How many values of a column get an id; if there are more, the rarest get none.

    >>> log = pa.table({"device": ["web", "app", "web"], "position": [1, 2, 3]})
    >>> found = vocabularies([log], ["device", "position"])
    >>> found["device"].values, found["position"].values
    (('app', 'web'), (1, 2, 3))
    """
    counts: dict[str, Counter[Any]] = {name: Counter() for name in names}
    for table in tables:
        for name, count in counts.items():
            found = pc.value_counts(_plain(table[name], name))
            count.update(dict(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True)))
    for name, count in counts.items():
        count.pop(None, None)
        if not count:
            raise InputError(f"column {name!r}: expected values, got nulls only; leave the column out")
    return {name: Vocabulary(tuple(sorted(_frequent(count, most)))) for name, count in counts.items()}


def from_json(found: Mapping[str, Sequence[Any]]) -> dict[str, Vocabulary]:
    """Vocabularies as they were stored with a model.

    >>> from_json({"position": [1, 2]})
    {'position': Vocabulary(values=(1, 2))}
    """
    return {name: Vocabulary(tuple(values)) for name, values in found.items()}


def _frequent(count: Counter[Any], most: int) -> list[Any]:
    return [value for value, _ in count.most_common(most)]


def _plain(column: Any, name: str, kind: Any = None) -> Any:
    """A column of any width, dictionary or sign as 64-bit integers or as text."""
    given = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if kind is None:
        whole = pa.types.is_integer(given) or pa.types.is_boolean(given) or pa.types.is_floating(given)
        kind = pa.int64() if whole else pa.string()
    try:
        return column.cast(given).cast(kind)
    except pa.ArrowException as error:
        raise InputError(
            f"column {name!r}: expected whole numbers or text, got {column.type}; cast the column"
        ) from error
