"""The serving model as an ONNX model: from features to a relevance logit and a probability per task.

The model contains the names of the columns, under the metadata key ``isolayer``, so that its user knows which column is
which. After writing, the model is read again and compared.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from isolayer.errors import InputError, need
from isolayer.fitting.columns import numbers
from isolayer.nn.inputs import module
from isolayer.settings import count, mapping
from isolayer.settings import path as checked_path

METADATA = "isolayer"
_CLOSE = 1e-4  # largest difference between torch and onnxruntime, both in float32, relative to values above 1
_CHECKED_ROWS = 64


def export_onnx(serving: nn.Module, path: str | Path, columns: Mapping[str, Any]) -> None:
    """Write a serving module as an ONNX model with one input, ``features`` of shape ``[batch, width]``.

    Args:
        serving: What ``model.serving()`` returns.
        path: Where to write; the file is complete when the call returns.
        columns: Facts about the columns to store in the model, as JSON values, with ``"width"``, ``"mean"``, ``"std"``.
    """
    module("serving", serving)
    if not {"width", "mean", "std"} <= set(mapping("columns", columns, advice="give width, mean and std")):
        raise InputError(f"columns: expected width, mean and std, got {sorted(columns)}; add the missing ones")
    width = count("columns 'width'", columns["width"], advice="give the number of features")
    for name in ("mean", "std"):
        numbers(f"columns {name!r}", columns[name], width)
    checked_path("path", path)
    onnx, runtime = need("onnx"), need("onnxruntime")
    need("onnxscript")
    model = _exported(serving.eval(), width).model_proto
    onnx.helper.set_model_props(model, {METADATA: json.dumps(columns)})
    onnx.checker.check_model(model)
    Path(path).write_bytes(model.SerializeToString())
    _compare(serving, runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"]), columns)


def _exported(serving: nn.Module, width: int) -> Any:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it mentions packages that it could also export
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.*", FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        return torch.onnx.export(
            serving,
            (torch.zeros(2, width),),
            dynamo=True,
            input_names=["features"],
            output_names=list(serving.names),  # type: ignore[arg-type]
            dynamic_shapes={"features": {0: torch.export.Dim("batch")}},
            verbose=False,
        )


def _compare(serving: nn.Module, session: Any, columns: Mapping[str, Any]) -> None:
    """Raise unless onnxruntime predicts as torch does, on features with the mean and spread of the log."""
    mean, std = (np.asarray(columns[name], dtype=np.float64) for name in ("mean", "std"))
    rows = np.random.default_rng(0).normal(size=(_CHECKED_ROWS, len(mean))) * std + mean
    features = rows.astype(np.float32)
    with torch.no_grad():
        expected = serving(torch.from_numpy(features))
    answer = session.run(None, {"features": features})
    for (name, value), found in zip(expected.items(), answer, strict=True):
        wanted = value.numpy()
        worst = float((np.abs(found - wanted) / np.maximum(np.abs(wanted), 1)).max())
        if not worst <= _CLOSE:
            raise RuntimeError(f"the ONNX model differs from the model by {worst:.1e} in {name}; it was not written")
