"""An ONNX graph under construction."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper, numpy_helper


class Graph:
    """Nodes and constants in the order they are added; every method returns the name of its result."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes = list[Any]()
        self.constants = list[Any]()

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        """A constant array."""
        name = f"{self.prefix}_constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """A node of some kind."""
        name = f"{self.prefix}_{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def encode(self, column: str, keys: list[Any], numbers: NDArray[Any], default: int) -> str:
        """The number of each key, an integer or a string; ``default`` for a value that is not a key."""
        kind = {"keys_strings" if isinstance(keys[0], str) else "keys_int64s": keys}
        values = {"values_int64s": numbers.tolist(), "default_int64": default}
        return self.add("LabelEncoder", column, domain="ai.onnx.ml", **kind, **values)
