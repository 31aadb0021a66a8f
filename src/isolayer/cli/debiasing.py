"""Commands about biased logs: simulate one, ask what one allows, train a ranker on one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isolayer.cli.logs import LABELS, column, names, read
from isolayer.cli.output import note, show
from isolayer.errors import InputError, need

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def simulate(
    out: Annotated[Path, typer.Option(help="Where to write the log, as Parquet.")] = Path("log.parquet"),
    sessions: Annotated[int, typer.Option(help="Lists shown; ten rows each.")] = 20_000,
    days: Annotated[int, typer.Option(help="Days they are spread over.")] = 1,
    click_behaviour: Annotated[str, typer.Option("--clicks", help="position or trust.")] = "position",
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    truth: Annotated[bool, typer.Option("--truth", help="Keep the columns no real log has.")] = False,
    json: Json = False,
) -> None:
    """Write a feed log with known relevance and known position bias.

    Example: isolayer simulate --sessions 50000 --days 7 --out log.parquet
    """
    pa, parquet = need("pyarrow", "data"), need("pyarrow.parquet", "data")
    simulation = need("isolayer.simulate", "data")
    behaviours = {"position": simulation.PositionBased, "trust": simulation.Trust}
    if click_behaviour not in behaviours:
        raise InputError(f"--clicks: expected position or trust, got {click_behaviour!r}; choose one")
    feed = simulation.Feed(behaviour=behaviours[click_behaviour](), days=days)
    log = feed.log(sessions, seed=seed)
    hidden = ("grade", "relevance_", "examination", "prob_", "logging_score")
    table: dict[str, Any] = {}
    for name, values in log.items():
        if values.ndim == 2:
            table |= {f"feature_{i}": values[:, i] for i in range(values.shape[1])}
        elif truth or not name.startswith(hidden):
            table[name] = values
    part = out.with_name(out.name + ".part")
    parquet.write_table(pa.table(table), part)
    part.replace(out)
    show(
        {"rows": len(log["position"]), "columns": len(table), "click_rate": log["click"].mean(), "written": out},
        as_json=json,
    )


def diagnose(
    log: Annotated[str, typer.Argument(help="Parquet, CSV or NDJSON: a path, glob, s3:// address, or - for stdin.")],
    label: Annotated[str | None, typer.Option(help="Column of labels.")] = None,
    position: Annotated[str, typer.Option(help="Column of positions.")] = "position",
    item: Annotated[str | None, typer.Option(help="Column of items, to compare across positions.")] = None,
    features: Annotated[
        str | None, typer.Option(help="Feature columns instead, with commas between; name* for many.")
    ] = None,
    json: Json = False,
) -> None:
    """Ask a log, before any training, whether the effect of position can be told from it.

    Example: isolayer diagnose log.parquet --label click --item item
    """
    table = read(log)
    columns = list(table.columns)
    name = column(label, "--label", LABELS, columns)
    by = column(item, "--item", ("item", "item_id", "doc", "doc_id"), columns) if features is None else None
    wanted = matching(features, columns) if features is not None else []
    rows = table.select(*dict.fromkeys([name, position, *([by] if by else wanted)])).to_pyarrow()
    compared: dict[str, Any] = (
        {"item": rows[by].to_numpy()} if by else {"features": np.column_stack([rows[one].to_numpy() for one in wanted])}
    )
    overlap = need("isolayer.debias.diagnose", "train").overlap
    result = overlap(rows[position].to_numpy(), rows[name].to_numpy(), **compared)
    if json:
        harvested = result.harvested
        show(
            {
                "estimable": result.estimable,
                "connected": result.connected,
                "shared_rows": result.shared_rows,
                "position": harvested.position,
                "effective_rows": result.effective_rows,
                "effect": harvested.ratio,
            },
            as_json=True,
        )
    else:
        print(result)


def train(
    logs: Annotated[list[Path], typer.Argument(help="Parquet files or folders.")],
    features: Annotated[str, typer.Option(help="Feature columns, with commas between; name* for many.")],
    tasks: Annotated[str, typer.Option(help="Label columns, with commas between.")] = "click",
    contexts: Annotated[str, typer.Option(help="Bias columns with their number of ids.")] = "position:20,device:3",
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, logs, weights and the serving model.")] = Path(
        "model"
    ),
    hidden: Annotated[str, typer.Option(help="Widths of the backbone's layers.")] = "64,32",
    alpha: Annotated[float, typer.Option(help="Weight of the inference loss.")] = 0.25,
    beta: Annotated[float, typer.Option(help="Weight of the observed loss.")] = 0.75,
    anchor: Annotated[
        str, typer.Option(help="detached keeps scores calibrated and ranking free; joint is the paper's.")
    ] = "detached",
    epochs: Annotated[int, typer.Option(help="Most passes over the log.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Rows a batch.")] = 1024,
    lr: Annotated[float, typer.Option(help="Learning rate of the backbone; curves learn ten times faster.")] = 1e-3,
    start: Annotated[str | None, typer.Option(help="resume, or a checkpoint of an earlier day to go on from.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    json: Json = False,
) -> None:
    """Train a ranker on biased logs: a relevance head to serve, and curves by position and device to strip.

    Writes weights, the learned curves and an ONNX model that asks for features only. Runs under torchrun as it is.

    Example: isolayer train log.parquet --features 'feature_*' --tasks click,skip --contexts position:10,device:3
    """
    torch = need("torch", "train")
    training, heads = need("isolayer.training", "train"), need("isolayer.debias.heads", "train")
    parquet = need("pyarrow.dataset", "train")
    columns = matching(features, parquet.dataset([str(path) for path in logs]).schema.names)
    sizes = _sizes(contexts)
    torch.manual_seed(seed)
    backbone, width = _backbone(len(columns), [int(one) for one in names(hidden)])
    model = heads.DualHead(
        backbone, width=width, tasks=names(tasks), contexts=sizes, alpha=alpha, beta=beta, anchor=anchor
    )
    fit = training.Fit(epochs=epochs, batch_size=batch_size, lr=lr, seed=seed)
    trained = training.train(
        model, logs, features=columns, tasks=names(tasks), contexts=list(sizes), folder=out, fit=fit, start=start
    )
    trained.model.curves().save(out / "curves.parquet")
    _export(trained.model, len(columns), out / "serving.onnx")
    show(
        {
            "held_out_loss": trained.held_out_loss,
            "epochs": trained.epochs,
            "checkpoint": trained.checkpoint,
            "weights": trained.weights,
            "curves": out / "curves.parquet",
            "serving": out / "serving.onnx",
        },
        as_json=json,
    )


def matching(listed: str, columns: list[str]) -> list[str]:
    """Columns by name, or by the beginning of their names where a star stands at the end.

    >>> matching("age,feature_*", ["age", "feature_0", "feature_1", "click"])
    ['age', 'feature_0', 'feature_1']
    """
    found: list[str] = []
    for name in names(listed):
        some = [one for one in columns if one.startswith(name[:-1])] if name.endswith("*") else [name]
        if not some or not set(some) <= set(columns):
            raise InputError(f"--features: expected columns of the log, got {name!r}; it has {', '.join(columns)}")
        found += some
    return found


def _sizes(contexts: str) -> dict[str, int]:
    sizes = {}
    for part in names(contexts):
        name, _, size = part.partition(":")
        if not size.isdigit():
            raise InputError(f"--contexts: expected name:ids such as position:20, got {part!r}; count its values")
        sizes[name] = int(size)
    return sizes


def _backbone(features: int, widths: list[int]) -> tuple[Any, int]:
    """Layers with batch normalisation at the input, since features of a log are on any scale."""
    nn = need("torch.nn", "train")
    layers: list[Any] = [nn.BatchNorm1d(features)]
    for before, after in zip([features, *widths[:-1]], widths, strict=True):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers), widths[-1]


def _export(model: Any, features: int, path: Path) -> None:
    torch = need("torch", "train")
    serving = model.serving().eval()
    example = torch.zeros(2, features)
    batch = torch.export.Dim("batch")
    try:
        torch.onnx.export(serving, (example,), path, dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    except (ImportError, ModuleNotFoundError):
        note("no ONNX model was written: pip install 'isolayer[onnx]'")
