"""Calibration and debiasing for ranking systems: one monotone layer, one exact solver, one artefact.

Names are imported when first used, so that ``import isolayer`` is quick and asks for no extra.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "ContextIsotonicLayer": "context",
    "Grid": "grid",
    "InputError": "errors",
    "IsotonicEmbedding": "layer",
    "IsotonicLayer": "layer",
    "MissingExtra": "errors",
    "parameter_groups": "layer",
    "piecewise_linear": "functional",
}

__all__ = [
    "ContextIsotonicLayer",
    "Grid",
    "InputError",
    "IsotonicEmbedding",
    "IsotonicLayer",
    "MissingExtra",
    "parameter_groups",
    "piecewise_linear",
]

if TYPE_CHECKING:
    from isolayer.context import ContextIsotonicLayer
    from isolayer.errors import InputError, MissingExtra
    from isolayer.functional import piecewise_linear
    from isolayer.grid import Grid
    from isolayer.layer import IsotonicEmbedding, IsotonicLayer, parameter_groups


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"isolayer.{_HOME[name]}"), name)
    raise AttributeError(f"module 'isolayer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
