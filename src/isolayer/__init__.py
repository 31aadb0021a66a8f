"""Calibration and debiasing for ranking systems: one monotone layer, one exact solver, one file of curves.

Names are imported when first used, so that ``import isolayer`` is quick and needs no extra.
"""

from typing import TYPE_CHECKING, Any

from isolayer.errors import need

_HOME = {
    "Audit": "auditing.findings",
    "ContextIsotonicLayer": "nn.context",
    "Curves": "curves.curves",
    "DualHead": "debias.heads",
    "Grid": "grid",
    "Histogram": "fitting.histogram",
    "InputError": "errors",
    "IsotonicCalibrator": "calibrator",
    "IsotonicEmbedding": "nn.isotonic",
    "IsotonicLayer": "nn.isotonic",
    "MissingExtra": "errors",
    "MonotoneLattice": "nn.lattice",
    "RowAdam": "nn.rates",
    "audit": "auditing.audit",
    "calibrate": "nn.posthoc",
    "parameter_groups": "nn.rates",
    "piecewise_linear": "nn.functional",
    "train_curves": "nn.alternating",
}

__all__ = [
    "Audit",
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
    "RowAdam",
    "audit",
    "calibrate",
    "parameter_groups",
    "piecewise_linear",
    "train_curves",
]

if TYPE_CHECKING:
    from isolayer.auditing.audit import audit
    from isolayer.auditing.findings import Audit
    from isolayer.calibrator import IsotonicCalibrator
    from isolayer.curves.curves import Curves
    from isolayer.debias.heads import DualHead
    from isolayer.errors import InputError, MissingExtra
    from isolayer.fitting.histogram import Histogram
    from isolayer.grid import Grid
    from isolayer.nn.alternating import train_curves
    from isolayer.nn.context import ContextIsotonicLayer
    from isolayer.nn.functional import piecewise_linear
    from isolayer.nn.isotonic import IsotonicEmbedding, IsotonicLayer
    from isolayer.nn.lattice import MonotoneLattice
    from isolayer.nn.posthoc import calibrate
    from isolayer.nn.rates import RowAdam, parameter_groups


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(need(f"isolayer.{_HOME[name]}"), name)
    if name == "__version__":
        return need("isolayer.curves.verified_file").library_version()
    if name in ("debias", "metrics", "policy", "simulate"):
        return need(f"isolayer.{name}")
    raise AttributeError(f"module 'isolayer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
