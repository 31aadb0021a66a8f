"""The command that searches for the settings of `train`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from isolayer.cli.columns import Features, column, names, next_step
from isolayer.cli.debiasing import train
from isolayer.cli.document import running
from isolayer.cli.logs import Json
from isolayer.cli.output import note, progress_bar, show, show_table
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
    ranker,
    use_cores,
)
from isolayer.errors import InputError, need

_SEARCHED = ("alpha", "beta", "lr", "decay", "dropout")
_OPTIONS = {"list_id": "--list"}  # options that are not named after their argument


def tune(
    logs: Logs,
    features: Features,
    tasks: Tasks = "click",
    decreasing: Decreasing = None,
    contexts: Contexts = "position,device",
    categories: Categories = None,
    list_id: ListId = None,
    truth: Annotated[
        str | None,
        typer.Option(
            help="Column of true relevance, as simulated logs have it: choose by nDCG against it. Needs --list."
        ),
    ] = None,
    alpha: Annotated[str, typer.Option(help="Weights of the served loss to try, comma-separated.")] = "0.25,0",
    beta: Annotated[str, typer.Option(help="Weights of the observed loss to try.")] = "0.75",
    lr: Annotated[str, typer.Option(help="Learning rates to try.")] = "0.001,0.0003,0.003",
    decay: Annotated[str, typer.Option(help="Decays of the backbone's weights to try.")] = "0,0.1",
    dropout: Annotated[str, typer.Option(help="Dropout rates to try.")] = "0,0.1",
    trials: Annotated[int, typer.Option(min=1, help="How many combinations to try.")] = 8,
    anchor: Annotated[str, typer.Option(help="detached, or joint, which is the paper's.")] = "detached",
    mode: Mode = "sum",
    loss: Loss = "pointwise",
    hidden: Hidden = "64,32",
    epochs: Annotated[int, typer.Option(help="Maximal number of passes over the log.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Rows per batch.")] = 1024,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the trials; a search that it holds is continued.")] = Path(
        "tuning"
    ),
    json: Json = False,
) -> None:
    """Search for the settings of `train`: loss weights, rate, decay and dropout, by the loss of held-out rows.

    With --truth, settings are chosen by nDCG against true relevance, which a held-out loss does not measure. The search
    is saved after every trial: the same command continues one that was interrupted. A folder holds one search; with
    another log or other options, except the values to try, name another.

    Example: isolayer tune log.parquet --features 'feature_*' --trials 8
    """
    space = dict(zip(_SEARCHED, (alpha, beta, lr, decay, dropout), strict=True))
    values = {name: _numbers(given, f"--{name}") for name, given in space.items()}
    if truth is not None and list_id is None:
        raise InputError("--list: expected a column of lists, since nDCG compares lists, got none; name it")
    search, training = need("isolayer.training.tune"), need("isolayer.training.train")
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
        )

        def make(settings: dict[str, Any]) -> Any:
            return asked.model(**{name: settings[name] for name in ("alpha", "beta", "dropout")}, seed=seed)

        fit = training.Fit(epochs=epochs, batch_size=batch_size, seed=seed, list_id=list_id, progress=False)
        with progress_bar("trials") as report, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the warnings of the trials are printed below
            found = search.tune(
                *(make, files, values),
                trials=trials,
                folder=out,
                columns=asked.columns(),
                fit=fit,
                truth=None if truth is None else column(truth, "--truth", (), asked.all_columns),
                setup=asked.setup(),
                report=report,
            )
    _show(found, as_json=json)
    for warning in _distinct(one for trial in found for one in trial.warnings):
        note(f"warning: {warning}")
    chosen = [word for name in space for word in (f"--{name}", repr(found[0].settings[name]).removesuffix(".0"))]
    next_step("train", *logs, *_given(), *chosen)


def _given() -> list[str]:
    """The options of this command that `train` has too, as they were given; those with their defaults are left out."""
    options, given = signature(tune).parameters, running().settings
    shared = [name for name in options if name in signature(train).parameters and name not in ("logs", "out", "json")]
    chosen = [name for name in shared if name not in _SEARCHED and given.get(name) != options[name].default]
    return [word for name in chosen for word in (_OPTIONS.get(name, f"--{name.replace('_', '-')}"), str(given[name]))]


def _distinct(warnings: Iterable[str]) -> list[str]:
    """Each warning once; those that differ in their numbers only are the same.

    >>> _distinct(["correlation -0.62", "correlation -0.59", "no row"])
    ['correlation -0.62', 'no row']
    """
    found: dict[str, str] = {}
    for warning in warnings:
        found.setdefault(re.sub(r"-?[\d.]*\d", "#", warning), warning)
    return list(found.values())


def _show(found: list[Any], *, as_json: bool) -> None:
    table: dict[str, list[Any]] = {name: [trial.settings[name] for trial in found] for name in found[0].settings}
    table["held_out_loss"] = [trial.held_out_loss for trial in found]
    if found[0].truth is not None:
        table["ndcg"] = [trial.truth for trial in found]
    table |= {"epochs": [trial.epochs for trial in found], "folder": [trial.folder for trial in found]}
    if as_json:
        rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        show({"trials": rows}, as_json=True)
    else:
        show_table(table, as_json=False)


def _numbers(given: str, option: str) -> list[float]:
    """Numbers to try.

    >>> _numbers("0.25, 0", "--alpha")
    [0.25, 0.0]
    """
    try:
        found = [float(one) for one in names(given)]
    except ValueError:
        found = []
    if not found:
        raise InputError(f"{option}: expected numbers such as 0.25,0, got {given!r}; separate them by commas")
    return list(dict.fromkeys(found))
