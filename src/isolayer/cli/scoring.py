"""The command that adds the scores of a trained model to a log, for the commands that calibrate scores."""

from __future__ import annotations

import json as json_text
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow.compute as pc
import typer

from isolayer.cli.columns import matching, next_step, refuse_text
from isolayer.cli.files import check_output
from isolayer.cli.logs import Json, Log, name_of, read
from isolayer.cli.output import note, show
from isolayer.cli.rankers import cores
from isolayer.errors import InputError, need
from isolayer.storage import read_once, read_set, whole_file
from isolayer.vocabularies import Vocabulary

BATCH = 65_536  # rows per call of the model
FAR = 10.0  # a warning is printed if the mean of a feature differs from that in training by more standard deviations


def score(
    log: Log,
    model: Annotated[Path, typer.Option(help="The serving model that `train` wrote, or its folder.")] = Path(
        "model/serving.onnx"
    ),
    features: Annotated[
        str | None,
        typer.Option(help="Feature columns, if the log must have these and no others; by default the model's own."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to write the rows, as Parquet.")] = Path("scored.parquet"),
    json: Json = False,
) -> None:
    """Add a trained ranker's probabilities to a log. They are what `isolayer fit` calibrates.

    A model of the task click adds click_prob, its probability on logged traffic given the features, and
    click_relevance, the logit to rank by, which rises with relevance for decreasing tasks too. The model stores the
    names of its feature columns; their order in the log does not matter, and values that it has not seen count as
    unknown. Fit a calibrator to rows on which the ranker was not trained.

    Example: isolayer score log.parquet --model model/serving.onnx --out scored.parquet
    """
    model = model / "serving.onnx" if model.is_dir() else model
    check_output(out, "--out", *log, model)
    table, served = read(log), ServedModel.load(model)
    served.check(table, features)
    new = served.new_columns(list(table.columns))
    rows = table.to_pyarrow()
    if not len(rows):
        raise InputError(f"log: expected at least one row, got none in {name_of(log)!r}; check what wrote it")
    matrix = served.matrix(rows)
    _compare_means(matrix, served.known)
    outputs = served.outputs(matrix)
    for name in new:
        rows = rows.append_column(name, [_finite(name, outputs[name])])
    with whole_file(out) as part:
        need("pyarrow.parquet").write_table(rows, part)
    show({"rows": len(rows), "columns": ", ".join(new), "written": out}, as_json=json)
    task = served.tasks[0]
    label = ["--label", task] if task in table.columns else []
    next_step("fit", out, "--score", f"{task}_prob", "--scale", "prob", *label)


@dataclass(frozen=True)
class ServedModel:
    """A serving model, ready to run, and its columns.

    Args:
        session: The session of onnxruntime.
        known: Its columns, from its metadata.
    """

    session: Any
    known: dict[str, Any]

    @classmethod
    def load(cls, model: Path) -> ServedModel:
        """Read a serving model, as `train` wrote it."""
        session = _session(model)
        return cls(session, _known_columns(session, model))

    @property
    def tasks(self) -> list[str]:
        """Names of its tasks."""
        return list(self.known["tasks"])

    def check(self, table: Any, features: str | None = None) -> None:
        """Raise unless a table has the model's feature columns and ``features``, if given, names exactly these."""
        columns = _model_features(self.known, features, list(table.columns))
        if not isinstance(self.known["features"], str):
            refuse_text(table, [name for name in columns if name not in self.known["vocabularies"]])

    def new_columns(self, columns: list[str]) -> list[str]:
        """Names of the columns the model adds to these."""
        return _new_columns(self.known, columns)

    def matrix(self, rows: Any) -> Any:
        """Features of rows as the model takes them, ``[rows, features]``."""
        return _matrix(rows, self.known)

    def outputs(self, matrix: Any) -> dict[str, Any]:
        """For each task its relevance and its probability, by name."""
        parts = [self.session.run(None, {"features": matrix[at : at + BATCH]}) for at in range(0, len(matrix), BATCH)]
        names = [name for task in self.tasks for name in (f"{task}_relevance", f"{task}_prob")]
        return dict(zip(names, map(np.concatenate, zip(*parts, strict=True)), strict=True))


def _session(model: Path) -> Any:
    """A serving model, ready to run. If there is a manifest next to it, the model must match it."""
    manifest = model.parent / "manifest.json"
    if model.is_file() and manifest.is_file():
        content = read_set(manifest, model.name)[model.name]
    else:
        content = read_once(model, "a serving model, as `isolayer train` writes it,", name="--model")
    runtime = need("onnxruntime")
    state = need("onnxruntime.capi.onnxruntime_pybind11_state")
    unreadable = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NotImplemented", "RuntimeException")
    try:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = cores()
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except tuple(getattr(state, name) for name in unreadable) as error:
        raise InputError(
            f"--model: expected an ONNX model, got {str(model)!r}; give what `isolayer train` wrote"
        ) from error


def _known_columns(session: Any, model: Path) -> dict[str, Any]:
    """The columns of the model from its metadata, checked against its inputs and outputs."""
    found = session.get_modelmeta().custom_metadata_map.get("isolayer")
    outputs = [one.name for one in session.get_outputs()]
    try:
        known: dict[str, Any] = json_text.loads(found or "{}")
        known.setdefault("vocabularies", {})  # older models do not have these entries
        features, tasks, width = known["features"], known["tasks"], known["width"]
        expected = [name for task in tasks for name in (task, f"{task}_prob")]
        shape = session.get_inputs()[0].shape
        whole = isinstance(features, str) or len(features) == width
        if whole and outputs == expected and shape[1:] == [width] == [len(known["mean"])] == [len(known["std"])]:
            return known
    except (LookupError, TypeError, ValueError):
        pass
    raise InputError(
        f"--model: expected a model that stores its columns, as `isolayer train` writes it, got {str(model)!r} with "
        f"outputs {outputs}; train it again"
    )


def _model_features(known: dict[str, Any], given: str | None, columns: list[str]) -> list[str]:
    """The model's feature columns in its own order, all of which the log must have."""
    own = [known["features"]] if isinstance(known["features"], str) else list(known["features"])
    missing = [name for name in own if name not in columns]
    if missing:
        raise InputError(
            f"log: expected the feature columns of the model, got none called {', '.join(missing)}; it has "
            f"{', '.join(columns)}"
        )
    if given is not None:
        named = matching(given, columns)
        left_out, extra = [name for name in own if name not in named], [name for name in named if name not in own]
        if left_out or extra:
            got = [f"{', '.join(names)} {what}" for names, what in ((left_out, "left out"), (extra, "added")) if names]
            raise InputError(f"--features: expected the columns of the model, got {' and '.join(got)}; leave it out")
    return own


def _new_columns(known: dict[str, Any], columns: list[str]) -> list[str]:
    """Names of the columns a model adds: for each task its relevance and its probability."""
    new = [name for task in known["tasks"] for name in (f"{task}_relevance", f"{task}_prob")]
    for name in new:
        if name in columns:
            raise InputError(f"log: expected no column {name!r}, which is to be added, got one; rename it")
    return new


def _matrix(rows: Any, known: dict[str, Any]) -> Any:
    """Features of rows as the model takes them, ``[rows, features]``."""
    if isinstance(known["features"], str):
        lists = rows[known["features"]].combine_chunks()
        listed = hasattr(lists, "flatten") and not lists.null_count
        if not listed or (pc.list_value_length(lists).to_numpy() != known["width"]).any():
            raise InputError(
                f"column {known['features']}: expected lists of {known['width']} numbers, got {lists.type}; convert it"
            )
        matrix = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(rows), -1)
    else:
        matrix = np.column_stack([_feature(rows[name], name, known) for name in known["features"]])
    return _finite("features", matrix)


def _feature(column: Any, name: str, known: dict[str, Any]) -> Any:
    """A feature as the model takes it: a number, or the id of a category, from 1; an unseen category is 0."""
    if name not in known["vocabularies"]:
        return column.to_numpy().astype(np.float32)
    vocabulary = Vocabulary(tuple(known["vocabularies"][name]))
    return (vocabulary.ids(column, name) + 1).astype(np.float32)


def _finite(name: str, values: Any) -> Any:
    if not np.isfinite(values).all():
        raise InputError(f"{name}: expected finite values, got NULL, NaN or infinity; repair those rows")
    return values


def _compare_means(matrix: Any, known: dict[str, Any]) -> None:
    """Warn about features whose mean is far from that in training: often the unit or the column is wrong."""
    mean, std = np.asarray(known["mean"]), np.asarray(known["std"])
    gap = np.abs(matrix.mean(0, dtype=np.float64) - mean)
    for index in np.flatnonzero(gap > FAR * np.maximum(std, 1e-6 * np.abs(mean) + 1e-12)):
        name = known["features"] if isinstance(known["features"], str) else known["features"][index]
        if name in known["vocabularies"]:
            continue
        note(
            f"warning: the mean of {name} is {matrix[:, index].mean():.3g}, in training it was {mean[index]:.3g} with "
            f"a standard deviation of {std[index]:.3g}"
        )
