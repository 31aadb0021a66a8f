"""Commands about biased logs: simulate a log, train a ranker on one, and a demonstration of both."""

from __future__ import annotations

import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from isolayer.cli.columns import Features, next_step
from isolayer.cli.files import check_output
from isolayer.cli.logs import Json
from isolayer.cli.output import note, show
from isolayer.cli.rankers import (
    Categories,
    Contexts,
    Decreasing,
    Hidden,
    ListId,
    Logs,
    Loss,
    Mode,
    Tasks,
    as_parquet,
    earlier_vocabularies,
    first_process,
    per_task,
    ranker,
    use_cores,
)
from isolayer.errors import InputError, install, need
from isolayer.storage import whole_file


def demo(
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("demo"),
    quick: Annotated[bool, typer.Option("--quick", help="A smaller log.")] = False,
    json: Json = False,
) -> None:
    """See everything work in minutes. Simulates a feed, debiases a ranker, calibrates it, exports it, reports it.

    Example: isolayer demo
    """
    use_cores(most=1)  # its models are small
    need("isolayer.cli.demonstration").run(out, quick=quick, as_json=json)


def simulate(
    out: Annotated[Path, typer.Option(help="Where to write the log, as Parquet.")] = Path("log.parquet"),
    sessions: Annotated[int, typer.Option(min=1, help="Number of lists, each of ten rows.")] = 20_000,
    days: Annotated[int, typer.Option(min=1, help="Number of days over which the lists are spread.")] = 1,
    click_behaviour: Annotated[
        str,
        typer.Option(
            "--clicks", help="Bias of the clicks: position, or trust (position and trust in the top of the list)."
        ),
    ] = "position",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    truth: Annotated[
        bool,
        typer.Option("--truth", help="Keep the columns that no real log has: relevance, examination, probabilities."),
    ] = False,
    json: Json = False,
) -> None:
    """Write a feed log with known relevance and known position bias.

    The log has features, positions, devices and clicks, and no scores: `isolayer train` learns a ranker from it,
    `isolayer score` adds the ranker's probabilities, and `isolayer fit` calibrates those. Each command prints the one
    that comes next.

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


def train(
    logs: Logs,
    features: Features,
    tasks: Tasks = "click",
    decreasing: Decreasing = None,
    contexts: Contexts = "position,device",
    categories: Categories = None,
    list_id: ListId = None,
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, logs, weights and the serving model.")] = Path(
        "model"
    ),
    hidden: Hidden = "64,32",
    alpha: Annotated[
        str,
        typer.Option(
            help="Weight of the served loss: one number for all tasks, or one for each. Then every task must be named, "
            "as in --tasks click,skip --alpha click:0.25,skip:0.5."
        ),
    ] = "0.25",
    beta: Annotated[
        str,
        typer.Option(
            help="Weight of the observed loss: one number for all tasks, or one for each. Then every task must be "
            "named, as in --tasks click,skip --beta click:0.75,skip:0.5."
        ),
    ] = "0.75",
    anchor: Annotated[
        str,
        typer.Option(
            help="detached calibrates the served probability without changing the ranking; joint is the paper's."
        ),
    ] = "detached",
    mode: Mode = "sum",
    loss: Loss = "pointwise",
    dropout: Annotated[float, typer.Option(min=0, max=0.9, help="Share of hidden units left out in training.")] = 0.0,
    epochs: Annotated[int, typer.Option(help="Maximal number of passes over the log.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Rows per batch, of all processes together.")] = 1024,
    lr: Annotated[float, typer.Option(help="Learning rate of the backbone; curves learn ten times faster.")] = 1e-3,
    decay: Annotated[
        float,
        typer.Option(min=0, help="Decay of the backbone's weights; for a small log that overfits, try 0.1 to 0.3."),
    ] = 0.0,
    start: Annotated[
        str | None,
        typer.Option("--start-from", help="resume, or a checkpoint of an earlier day to continue from."),
    ] = None,
    allow_leaks: Annotated[bool, typer.Option("--allow-leaks", help="Accept features that give a label away.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    json: Json = False,
) -> None:
    """Train a ranker on biased logs. Relevance is served; what position and device did to labels is not.

    Writes weights, the learned curves and serving.onnx, a model that needs features only and stores their names;
    `isolayer score` adds its probabilities to a log. These files replace those of an earlier run all together, or not
    at all. The same command runs under torchrun: every batch is then divided among the processes.

    Example: isolayer train log.parquet --features 'feature_*' --tasks click,skip --decreasing skip
    """
    factors = {"alpha": per_task(alpha, "--alpha"), "beta": per_task(beta, "--beta")}
    if out.is_file():
        raise InputError(f"--out: expected a folder, got the file {str(out)!r}; name another")
    training = need("isolayer.training.train")
    use_cores()
    with as_parquet(logs) as files:
        asked = ranker(
            files,
            features=features,
            tasks=tasks,
            decreasing=decreasing,
            contexts=contexts,
            categories=categories,
            hidden=hidden,
            mode=mode,
            anchor=anchor,
            loss=loss,
            list_id=list_id,
            known=earlier_vocabularies(start, out),
        )
        model = asked.model(**factors, dropout=dropout, seed=seed)
        fit = training.Fit(
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            decay=decay,
            seed=seed,
            list_id=list_id,
            allow_leaks=allow_leaks,
        )
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):  # Lightning draws its progress there
            warnings.simplefilter("ignore", UserWarning)  # the warnings of the result are printed below
            trained = training.train(model, files, **asked.columns(), folder=out, fit=fit, start=start)
    _show_trained(trained, logs[0], as_json=json)


def _show_trained(trained: Any, log: Path, *, as_json: bool) -> None:
    """Print what training wrote, and the command to run next; under torchrun only the first process prints."""
    if not first_process():
        return
    shown = ("held_out_loss", "epochs", "checkpoint", "weights", "curves", "serving")
    show({name: getattr(trained, name) for name in shown}, as_json=as_json)
    for warning in trained.warnings:
        note(f"warning: {warning}")
    if trained.serving is None:
        note(f"no ONNX model was written: {install('onnx')}")
    else:
        next_step("score", log, "--model", trained.serving)
