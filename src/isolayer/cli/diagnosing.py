"""The command that tells whether a log shows the effect of position, and whether a trained model agrees with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isolayer.cli.clusters import INDEPENDENT, Cluster, Date, with_clusters
from isolayer.cli.columns import LABELS, column, matching, refuse_text
from isolayer.cli.logs import Json, Log, read
from isolayer.cli.output import note, show
from isolayer.cli.scoring import ServedModel
from isolayer.errors import InputError, need


def diagnose(
    log: Log,
    label: Annotated[
        str | None, typer.Option(help="Column of labels; guessed if one has a usual name, such as click.")
    ] = None,
    position: Annotated[str, typer.Option(help="Column of positions.")] = "position",
    item: Annotated[
        str | None, typer.Option(help="Column of items to compare across positions; guessed if one has a usual name.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="Without items: feature columns to compare by, comma-separated; a trailing * matches a prefix."
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder that `train` wrote: diagnose that model on this log, preferably a later one."),
    ] = None,
    list_id: Annotated[
        str | None, typer.Option("--list", help="Column of the list each row belongs to; needed to test the logger.")
    ] = None,
    cluster: Cluster = None,
    date: Date = None,
    json: Json = False,
) -> None:
    """Tell whether a log shows the effect of position; with --model, whether a trained model agrees with the log.

    Before training, the log shows the effect of position if the same items, or rows with similar features, were shown
    at several positions. After training, the command reports whether the model is calibrated in every context, whether
    its effect of position agrees with the log, whether the logger (the policy that ranked the logged lists) knew more
    than the features, and which alpha to train with.

    Intervals take into account that rows of one --cluster, or of one day of --date, vary together.

    Example: isolayer diagnose log.parquet --label click --item item --cluster user
    """
    table = read(log)
    column(position, "--position", (), list(table.columns))
    table, option, own = with_clusters(table, cluster, date)
    if model is not None:
        _after_training(table, model, label, position, list_id, own, as_json=json)
    else:
        _before_training(table, label, position, item, features, own, as_json=json)
    note(INDEPENDENT if option is None else f"intervals account for the clusters of {option}")


def _before_training(
    table: Any,
    label: str | None,
    position: str,
    item: str | None,
    features: str | None,
    clusters: str | None,
    *,
    as_json: bool,
) -> None:
    columns = [name for name in table.columns if name != clusters]
    name = column(label, "--label", LABELS, columns)
    by = column(item, "--item", ("item", "item_id", "doc", "doc_id"), columns) if features is None else None
    wanted = matching(features, columns) if features is not None else []
    refuse_text(table, wanted)
    own = [] if clusters is None else [clusters]
    rows = table.select(*dict.fromkeys([name, position, *([by] if by else wanted), *own])).to_pyarrow()
    compared: dict[str, Any] = (
        {"item": rows[by].to_numpy()} if by else {"features": np.column_stack([rows[one].to_numpy() for one in wanted])}
    )
    overlap = need("isolayer.debias.diagnose").overlap
    compared["cluster"] = None if clusters is None else _values(rows[clusters])
    result = overlap(rows[position].to_numpy(), rows[name].to_numpy(), **compared)
    if not as_json:
        print(result)
        return
    harvested = result.harvested
    lower, upper = harvested.interval()
    show(
        {
            "estimable": result.estimable,
            "connected": result.connected,
            "shared_rows": result.shared_rows,
            "position": harvested.position,
            "effective_rows": result.effective_rows,
            "effect": harvested.ratio,
            "effect_lower": lower,
            "effect_upper": upper,
            "clusters": harvested.clusters,
        },
        as_json=True,
    )


def _after_training(
    table: Any,
    folder: Path,
    label: str | None,
    position: str,
    list_id: str | None,
    clusters: str | None,
    *,
    as_json: bool,
) -> None:
    served = ServedModel.load(folder / "serving.onnx" if folder.is_dir() else folder)
    curves = _bias_curves(folder if folder.is_dir() else folder.parent, position)
    columns = [name for name in table.columns if name != clusters]
    task = served.tasks[0] if label is None else label
    if task not in served.tasks or task not in columns:
        raise InputError(f"--label: expected a task of the model in the log, got {task!r}; it has {served.tasks}")
    lists = None if list_id is None else column(list_id, "--list", (), columns)
    names = {position if name == "position" else name: name for name in curves.contexts[1:]}  # log: curves
    served.check(table)
    missing = [name for name in names if name not in columns]
    if missing:
        raise InputError(f"log: expected the contexts of the model, got none called {missing[0]!r}; it has {columns}")
    rows = table.to_pyarrow()
    matrix = served.matrix(rows)
    relevance = served.outputs(matrix)[f"{task}_relevance"].astype(np.float64)
    event = -relevance if task in served.known["decreasing"] else relevance
    context = {to: _values(rows[name]) for name, to in names.items()}
    diagnosis = need("isolayer.debias.diagnose")
    result = diagnosis.after_training(
        rows[task].to_numpy(),
        curves.predict_proba(event, {"task": np.full(len(event), task), **context}),
        relevance,
        context,
        session=None if lists is None else _values(rows[lists]),
        features=matrix,
        learned=diagnosis.position_effect(curves, event, context, task=task),
        cluster=None if clusters is None else _values(rows[clusters]),
    )
    _tell(result, as_json=as_json)


def _tell(result: Any, *, as_json: bool) -> None:
    if not as_json:
        print(result)
        low, high = result.harvested.interval()
        for place, learned, seen, *ends in zip(
            result.harvested.position, result.learned, result.harvested.ratio, low, high, strict=True
        ):
            print(f"position {place}: learned {learned:.3f}, in the log {seen:.3f} ({ends[0]:.3f} to {ends[1]:.3f})")
        return
    lower, upper = result.harvested.interval()
    show(
        {
            "alpha": result.alpha,
            "mode": "cross" if result.sums_fail else "sum",
            "position": result.harvested.position,
            "learned": result.learned,
            "harvested": result.harvested.ratio,
            "harvested_lower": lower,
            "harvested_upper": upper,
            "clusters": result.harvested.clusters,
            "differs": result.curve_differs,
            "observed_over_expected": result.by_position.ratio,
            "miscalibrated_contexts": int(result.miscalibrated.sum()),
        },
        as_json=True,
    )


def _bias_curves(folder: Path, position: str) -> Any:
    """The bias curves of a model, with its position feature renamed to ``position``."""
    curves = need("isolayer.curves.curves").Curves.load(folder / "curves.parquet")
    if position not in curves.contexts:
        raise InputError(
            f"--position: expected a context of the model, got {position!r}; it has {', '.join(curves.contexts[1:])}"
        )
    return replace(curves, contexts=tuple("position" if name == position else name for name in curves.contexts))


def _values(column: Any) -> Any:
    """A column as numpy, text as text."""
    values = column.to_numpy()
    return values.astype(str) if values.dtype == object else values
