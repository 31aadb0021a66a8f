"""Commands about biased logs: simulate one, ask what one allows, train a ranker on one."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isolayer.cli.columns import LABELS, Features, column, distinct, matching, names, next_step, refuse_text
from isolayer.cli.files import check_output
from isolayer.cli.logs import Json, Log, read
from isolayer.cli.output import note, show
from isolayer.errors import InputError, need
from isolayer.storage import whole_file


def demo(
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("demo"),
    quick: Annotated[bool, typer.Option("--quick", help="A smaller log.")] = False,
    json: Json = False,
) -> None:
    """See everything work in minutes. Simulates a feed, debiases a ranker, calibrates it, exports it, reports it.

    Example: isolayer demo
    """
    need("isolayer.cli.demonstration").run(out, quick=quick, as_json=json)


def simulate(
    out: Annotated[Path, typer.Option(help="Where to write the log, as Parquet.")] = Path("log.parquet"),
    sessions: Annotated[int, typer.Option(min=1, help="Lists shown; ten rows each.")] = 20_000,
    days: Annotated[int, typer.Option(min=1, help="Days they are spread over.")] = 1,
    click_behaviour: Annotated[
        str,
        typer.Option("--clicks", help="What biases clicks: position, or trust (in the top of the list as well)."),
    ] = "position",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    truth: Annotated[
        bool, typer.Option("--truth", help="Keep the columns no real log has: relevance, examination, probabilities.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a feed log with known relevance and known position bias.

    The log has features, positions, devices and clicks, and no scores: `isolayer train` learns a ranker from it,
    `isolayer score` adds the ranker's probabilities, and `isolayer fit` calibrates those. Each prints the command that
    comes next.

    Example: isolayer simulate --sessions 50000 --days 7 --out log.parquet
    """
    check_output(out, "--out")
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    simulation = need("isolayer.simulate")
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
    with whole_file(out) as part:
        parquet.write_table(pa.table(table), part)
    show(
        {"rows": len(log["position"]), "columns": len(table), "click_rate": log["click"].mean(), "written": out},
        as_json=json,
    )
    next_step("train", out, "--features", "feature_*", "--contexts", "position:10,device:3")


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
        typer.Option(help="Feature columns to compare by instead, comma-separated; a trailing * matches a prefix."),
    ] = None,
    json: Json = False,
) -> None:
    """Tell whether a log shows the effect of position. To be asked before any training.

    It does if the same items, or rows alike in their features, were shown at several positions.

    Example: isolayer diagnose log.parquet --label click --item item
    """
    table = read(log)
    columns = list(table.columns)
    name = column(label, "--label", LABELS, columns)
    by = column(item, "--item", ("item", "item_id", "doc", "doc_id"), columns) if features is None else None
    wanted = matching(features, columns) if features is not None else []
    column(position, "--position", (), columns)
    refuse_text(table, [name, *wanted])
    rows = table.select(*dict.fromkeys([name, position, *([by] if by else wanted)])).to_pyarrow()
    compared: dict[str, Any] = (
        {"item": rows[by].to_numpy()} if by else {"features": np.column_stack([rows[one].to_numpy() for one in wanted])}
    )
    overlap = need("isolayer.debias.diagnose").overlap
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
    features: Features,
    tasks: Annotated[str, typer.Option(help="Label columns, comma-separated.")] = "click",
    contexts: Annotated[
        str, typer.Option(help="Columns of ids from 0 that bias labels, each with its number of ids.")
    ] = "position:20,device:3",
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, logs, weights and the serving model.")] = Path(
        "model"
    ),
    hidden: Annotated[str, typer.Option(help="Widths of the backbone's layers, comma-separated.")] = "64,32",
    alpha: Annotated[
        str, typer.Option(help="Weight of the served loss, or one per task: click:0.25,skip:0.5.")
    ] = "0.25",
    beta: Annotated[str, typer.Option(help="Weight of the observed loss, likewise.")] = "0.75",
    anchor: Annotated[
        str,
        typer.Option(
            help="detached calibrates the served probability without changing the ranking; joint is the paper's."
        ),
    ] = "detached",
    epochs: Annotated[int, typer.Option(help="Maximal number of passes over the log.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Rows per batch.")] = 1024,
    lr: Annotated[float, typer.Option(help="Learning rate of the backbone; curves learn ten times faster.")] = 1e-3,
    start: Annotated[
        str | None, typer.Option(help="resume, or a checkpoint of an earlier day to continue from.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    json: Json = False,
) -> None:
    """Train a ranker on biased logs. Relevance is served; what position and device did to labels is not.

    Writes weights, the learned curves and serving.onnx, a model that needs features only and knows their names;
    `isolayer score` adds its probabilities to a log. These files replace those of an earlier run together, or not at
    all. The same command runs under torchrun.

    Example: isolayer train log.parquet --features 'feature_*' --tasks click,skip --contexts position:10,device:3
    """
    widths, sizes, labels = _widths(hidden), _sizes(contexts), distinct(names(tasks), "--tasks")
    factors = {"alpha": _per_task(alpha, "--alpha"), "beta": _per_task(beta, "--beta")}
    if out.is_file():
        raise InputError(f"--out: expected a folder, got the file {str(out)!r}; name another")
    columns = matching(features, _columns(logs))
    training, heads = need("isolayer.training.train"), need("isolayer.debias.heads")
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # it lists devices and advertises products
    need("torch").manual_seed(seed)
    backbone = _backbone(len(columns), widths)
    model = heads.DualHead(backbone, width=widths[-1], tasks=labels, contexts=sizes, anchor=anchor, **factors)
    fit = training.Fit(epochs=epochs, batch_size=batch_size, lr=lr, seed=seed)
    asked = {"features": columns, "tasks": labels, "contexts": list(sizes)}
    with redirect_stdout(sys.stderr):  # Lightning draws its progress there
        trained = training.train(model, logs, **asked, folder=out, fit=fit, start=start)
    _show_trained(trained, logs[0], as_json=json)


def _show_trained(trained: Any, log: Path, *, as_json: bool) -> None:
    """What training wrote, and the command that comes next; under torchrun one process speaks for all."""
    if os.environ.get("RANK", "0") != "0":
        return
    shown = ("held_out_loss", "epochs", "checkpoint", "weights", "curves", "serving")
    show({name: getattr(trained, name) for name in shown}, as_json=as_json)
    if trained.serving is None:
        note("no ONNX model was written: pip install 'isolayer[onnx]'")
    else:
        next_step("score", log, "--model", trained.serving)


def _columns(logs: list[Path]) -> list[str]:
    """Columns of Parquet files and folders of them."""
    for path in logs:
        if not path.exists():
            raise InputError(f"logs: expected a Parquet file or a folder of them at {str(path)!r}, got none; check it")
    files = [file for path in logs for file in (sorted(path.glob("**/*.parquet")) if path.is_dir() else [path])]
    if not files:
        raise InputError(f"logs: expected Parquet files in {str(logs[0])!r}, got none; check the path")
    return list(need("pyarrow.parquet").read_schema(files[0]).names)


def _sizes(contexts: str) -> dict[str, int]:
    parts = [part.partition(":") for part in names(contexts)]
    for name, sign, size in parts:
        if not (name and size.isdecimal() and int(size) > 0):
            raise InputError(
                f"--contexts: expected name:ids such as position:20, got {name + sign + size!r}; count its values"
            )
    distinct([name for name, _, _ in parts], "--contexts")
    return {name: int(size) for name, _, size in parts}


def _per_task(given: str, option: str) -> float | dict[str, float]:
    """A number for all tasks, or one for each.

    >>> _per_task("0.25", "--alpha"), _per_task("click:0.25, skip:0.5", "--alpha")
    (0.25, {'click': 0.25, 'skip': 0.5})
    """
    parts = [part.rpartition(":") for part in names(given)]
    try:
        if len(parts) == 1 and not parts[0][1]:
            return float(given)
        if parts and all(sign for _, sign, _ in parts):
            return {task: float(number) for task, _, number in parts}
    except ValueError:
        pass
    raise InputError(
        f"{option}: expected a number, or task:number for each task, got {given!r}; try 0.25 or click:0.25"
    )


def _widths(hidden: str) -> list[int]:
    """Widths of layers.

    >>> _widths("64,32")
    [64, 32]
    """
    widths = [int(one) if one.isdecimal() else 0 for one in names(hidden)]
    if not widths or min(widths) < 1:
        raise InputError(f"--hidden: expected widths such as 64,32, got {hidden!r}; give at least one")
    return widths


def _backbone(features: int, widths: list[int]) -> Any:
    """Layers with batch normalisation at the input, since features of a log are on any scale."""
    nn = need("torch.nn")
    layers: list[Any] = [nn.BatchNorm1d(features)]
    for before, after in zip([features, *widths[:-1]], widths, strict=True):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)
