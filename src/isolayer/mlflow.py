"""Curves as a flavour of MLflow: logged, loaded and scored like any other model, and stored as one Parquet file.

Any tool that serves MLflow's Python functions can serve them: the input is a frame with the score and context columns,
the output its calibrated probabilities. Nothing is pickled.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.verified_file import library_version
from isolayer.errors import InputError, need
from isolayer.settings import instance, text
from isolayer.settings import path as checked_path

_FILE = "curves.parquet"
_KINDS = {"U": "string", "O": "string", "i": "long", "b": "boolean"}  # MLflow's names for the types of context columns


class Predictor:
    """The object that MLflow calls: from frames to probabilities.

    Args:
        curves: The calibrator.

    >>> from isolayer.grid import Grid
    >>> Predictor(Curves.identity(Grid())).predict({"score": [0.0]}).tolist()
    [0.5]
    """

    def __init__(self, curves: Curves) -> None:
        self.curves = curves

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> NDArray[np.float64]:
        """Calibrated probabilities of a frame that has the score and context columns; ``params`` are not used."""
        names = [_score(self.curves), *self.curves.contexts, *self.curves.fields]
        absent = [name for name in names if name not in model_input]
        if absent:
            raise InputError(f"columns: expected {', '.join(names)}, got none called {absent[0]!r}; add it")
        return self.curves.predict_proba(model_input[names[0]], {name: model_input[name] for name in names[1:]} or None)

    def get_raw_model(self) -> Curves:
        """The calibrator itself; MLflow requires this name."""
        return self.curves


def save_model(curves: Curves, path: str | PathLike[str], **options: Any) -> None:
    """Write a folder that :func:`mlflow.pyfunc.load_model` reads.

    Args:
        curves: The calibrator.
        path: The folder, which must not exist.
        options: Further options of :func:`mlflow.pyfunc.save_model`, such as ``metadata``.
    """
    checked_path("path", path)
    with TemporaryDirectory(prefix="isolayer-") as folder, _without_advice():
        need("mlflow.pyfunc").save_model(path, **_model(curves, Path(folder), options))


def log_model(curves: Curves, name: str = "calibrator", **options: Any) -> Any:
    """Log a calibrator as a model of the active run.

    Args:
        curves: The calibrator.
        name: Name of the model.
        options: Further options of :func:`mlflow.pyfunc.log_model`, such as ``registered_model_name``.

    Returns:
        MLflow's information about the model; pass its ``model_uri`` to :func:`mlflow.pyfunc.load_model`.
    """
    text("name", name, advice="name the model")
    with TemporaryDirectory(prefix="isolayer-") as folder, _without_advice():
        return need("mlflow.pyfunc").log_model(name=name, **_model(curves, Path(folder), options))


def load_model(uri: str) -> Curves:
    """The calibrator of a logged or saved model.

    Args:
        uri: Where it is: ``models:/...``, ``runs:/...`` or a folder.
    """
    text("uri", uri, advice="give models:/..., runs:/... or a folder")
    curves: Curves = need("mlflow.pyfunc").load_model(uri).get_raw_model()
    return curves


def _load_pyfunc(path: str) -> Predictor:
    """Called by MLflow with the path of the data."""
    return Predictor(Curves.load(path))


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence MLflow's advice to give examples and type hints, from which it would guess a signature: it is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _model(curves: Curves, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Write the curves to a folder, and return the options with which MLflow stores them."""
    instance("curves", curves, Curves, advice="give the curves_ of a calibrator, or load a file")
    curves.save(folder / _FILE)
    known = {"loader_module": __name__, "data_path": str(folder / _FILE), "signature": _signature(curves)}
    known["pip_requirements"] = ["isolayer" if library_version() == "unknown" else f"isolayer=={library_version()}"]
    return known | options


def _signature(curves: Curves) -> Any:
    """The input columns, and one number per row as output; None for curves with fields, which can have any type."""
    if curves.fields:
        return None
    types, models = need("mlflow.types"), need("mlflow.models")
    keys = curves.keys[-1] if curves.contexts else ()
    columns = [types.ColSpec("double", _score(curves))]
    columns += [types.ColSpec(_KINDS[key.dtype.kind], name) for name, key in zip(curves.contexts, keys, strict=True)]
    out = types.Schema([types.TensorSpec(np.dtype(np.float64), (-1,))])
    return models.ModelSignature(inputs=types.Schema(columns), outputs=out)


def _score(curves: Curves) -> str:
    return curves.score_name or "score"
