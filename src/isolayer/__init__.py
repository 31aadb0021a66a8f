"""Calibration and debiasing for ranking systems: one monotone layer, one exact solver, one artefact.

Names are imported when first used, so that ``import isolayer`` is quick and asks for no extra.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Grid": "grid",
    "InputError": "errors",
    "MissingExtra": "errors",
}

__all__ = ["Grid", "InputError", "MissingExtra"]

if TYPE_CHECKING:
    from isolayer.errors import InputError, MissingExtra
    from isolayer.grid import Grid


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"isolayer.{_HOME[name]}"), name)
    raise AttributeError(f"module 'isolayer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
