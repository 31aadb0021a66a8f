"""The command that scores a log by the model that `train` wrote, for the commands that calibrate scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isolayer.cli.columns import Features, matching, next_step, refuse_text
from isolayer.cli.files import check_output
from isolayer.cli.logs import Json, Log, read
from isolayer.cli.output import show
from isolayer.errors import InputError, need
from isolayer.storage import whole_file

BATCH = 65_536  # rows the model is asked about at once


def score(
    log: Log,
    features: Features,
    model: Annotated[Path, typer.Option(help="The serving model, as `train` wrote it.")] = Path("model/serving.onnx"),
    out: Annotated[Path, typer.Option(help="Where to write the rows, as Parquet.")] = Path("scored.parquet"),
    json: Json = False,
) -> None:
    """Add a trained ranker's probabilities to a log. They are what `isolayer fit` calibrates.

    A model of the task click adds click_prob, its probability, and click_relevance, the logit to rank by. Name the
    features as they were named to `train`. A calibrator is best fitted to rows the ranker was not trained on.

    Example: isolayer score log.parquet --features 'feature_*' --model model/serving.onnx --out scored.parquet
    """
    check_output(out, "--out", log, model)
    table, session = read(log), _session(model)
    columns = matching(features, list(table.columns))
    new = _new_columns(session, columns, list(table.columns))
    refuse_text(table, columns)
    rows = table.to_pyarrow()
    if not len(rows):
        raise InputError(f"log: expected at least one row, got none in {log!r}; check what wrote it")
    parts = [session.run(None, {"features": _matrix(part, columns)}) for part in rows.to_batches(max_chunksize=BATCH)]
    for name, values in zip(new, zip(*parts, strict=True), strict=True):
        rows = rows.append_column(name, [np.concatenate(values)])
    with whole_file(out) as part:
        need("pyarrow.parquet").write_table(rows, part)
    show({"rows": len(rows), "columns": ", ".join(new), "written": out}, as_json=json)
    task = new[0].removesuffix("_relevance")
    label = ["--label", task] if task in table.columns else []
    next_step("fit", out, "--score", f"{task}_prob", "--scale", "prob", *label)


def _session(model: Path) -> Any:
    """A serving model, ready to run."""
    if not model.is_file():
        raise InputError(
            f"--model: expected a serving model at {str(model)!r}, got none; make one with `isolayer train`"
        )
    runtime = need("onnxruntime")
    state = need("onnxruntime.capi.onnxruntime_pybind11_state")
    try:
        return runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    except (state.InvalidProtobuf, state.InvalidGraph, state.InvalidArgument, state.Fail) as error:
        raise InputError(
            f"--model: expected an ONNX model, got {str(model)!r}; give what `isolayer train` wrote"
        ) from error


def _new_columns(session: Any, features: list[str], columns: list[str]) -> list[str]:
    """Names of the columns a model adds: for each task its relevance and its probability."""
    outputs = [one.name for one in session.get_outputs()]
    inputs = [one.name for one in session.get_inputs()]
    if inputs != ["features"] or outputs[1::2] != [f"{task}_prob" for task in outputs[::2]]:
        raise InputError(
            f"--model: expected a model of features as `isolayer train` writes it, got one with outputs {outputs}; "
            "train it again"
        )
    expected = session.get_inputs()[0].shape[1]
    if expected != len(features):
        raise InputError(
            f"--features: expected the {expected} columns that the model was trained on, got {len(features)}; "
            "name them as for `isolayer train`"
        )
    new = [name for task in outputs[::2] for name in (f"{task}_relevance", f"{task}_prob")]
    for name in set(new) & set(columns):
        raise InputError(f"log: expected no column {name!r}, which is to be added, got one; rename it")
    return new


def _matrix(rows: Any, features: list[str]) -> Any:
    """Features of rows as the model takes them, ``[rows, features]``."""
    matrix = np.column_stack([rows[name].to_numpy(zero_copy_only=False).astype(np.float32) for name in features])
    if not np.isfinite(matrix).all():
        raise InputError("features: expected finite values, got NULL, NaN or infinity; repair those rows")
    return matrix
