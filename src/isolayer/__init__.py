"""Calibration and debiasing for ranking systems: one monotone layer, one exact solver, one artefact.

Names are imported when first used, so that ``import isolayer`` is quick and asks for no extra.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "ContextIsotonicLayer": "context",
    "Curves": "curves",
    "DualHead": "debias.heads",
    "Grid": "grid",
    "Histogram": "histogram",
    "InputError": "errors",
    "IsotonicCalibrator": "calibrator",
    "IsotonicEmbedding": "layer",
    "IsotonicLayer": "layer",
    "MissingExtra": "errors",
    "MonotoneLattice": "lattice",
    "calibrate": "alternating",
    "parameter_groups": "layer",
    "piecewise_linear": "functional",
}

__all__ = [
    "ContextIsotonicLayer",
    "Curves",
    "DualHead",
    "Grid",
    "Histogram",
    "InputError",
    "IsotonicCalibrator",
    "IsotonicEmbedding",
    "IsotonicLayer",
    "MissingExtra",
    "MonotoneLattice",
    "calibrate",
    "parameter_groups",
    "piecewise_linear",
]

if TYPE_CHECKING:
    from isolayer.alternating import calibrate
    from isolayer.calibrator import IsotonicCalibrator
    from isolayer.context import ContextIsotonicLayer
    from isolayer.curves import Curves
    from isolayer.debias.heads import DualHead
    from isolayer.errors import InputError, MissingExtra
    from isolayer.functional import piecewise_linear
    from isolayer.grid import Grid
    from isolayer.histogram import Histogram
    from isolayer.lattice import MonotoneLattice
    from isolayer.layer import IsotonicEmbedding, IsotonicLayer, parameter_groups


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"isolayer.{_HOME[name]}"), name)
    if name in ("debias", "metrics", "policy", "simulate"):
        return import_module(f"isolayer.{name}")
    raise AttributeError(f"module 'isolayer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
