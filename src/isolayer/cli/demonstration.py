"""The demonstration: one simulated feed, three rankers, one calibrator, its exports and its report, in five lines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import nn

from isolayer import metrics
from isolayer.calibrator import IsotonicCalibrator
from isolayer.cli.output import show
from isolayer.debias import DualHead, Naive, PositionDropout
from isolayer.report import write
from isolayer.simulate import debias_feed
from isolayer.training.train import Fit, train

Columns = Mapping[str, NDArray[Any]]
CONTEXTS = {"position": 10, "device": 3}
WIDTH = 32
DEVICES = ("phone", "desktop", "tablet")  # by the id that the feed gives them


def run(folder: str | Path = "demo", *, quick: bool = False, as_json: bool = False) -> dict[str, Any]:
    """Run the demonstration and write it into a folder.

    Args:
        folder: Where everything is written; it is created if it does not exist.
        quick: Use a tenth of the rows.
        as_json: Print the JSON document of the command instead of words.

    Returns:
        The figures that are printed.
    """
    folder, say = Path(folder), Console(stderr=True, highlight=False, soft_wrap=True)
    folder.mkdir(parents=True, exist_ok=True)
    feed, sessions = debias_feed("position", "spurious"), 1_500 if quick else 15_000
    say.print(f"[1/5] simulate a feed log: {sessions:,} lists of 10, ranked by something that users do not care about")
    train_log, calibration_log, test_log = (feed.log(sessions, seed=seed) for seed in (1, 2, 3))
    write_log(train_log, folder / "log.parquet")
    say.print("[2/5] train three rankers on the clicks of that log")
    ndcg = dict[str, float]()
    for name, model in models(train_log["features"].shape[1]).items():
        say.print(f"      {name}")
        trained = fitted(model, folder / "log.parquet", folder / "models" / name.replace(" ", "-"), quick=quick)
        served, calibration = (_served(trained, log) for log in (test_log, calibration_log))
        ndcg[name] = metrics.ndcg(test_log["grade"], served["click"], test_log["session"])
    say.print("[3/5] fit a calibrator for the last ranker: one curve per device and position, fitted inside DuckDB")
    calibrator = _calibrated(calibration_log, calibration["click_prob"], folder / "scored.parquet")
    say.print("[4/5] export the same curves as Parquet, ONNX and SQL")
    calibrator.curves_.save(folder / "curves.parquet")
    calibrator.curves_.to_onnx(folder / "curves.onnx")
    (folder / "curves.sql").write_text(calibrator.curves_.to_sql("duckdb") + "\n")
    say.print("[5/5] write a report on rows that neither the ranker nor the calibrator has seen")
    today = _scored(test_log, served["click_prob"])
    write(folder / "report.html", today, calibrator.curves_, score="prob", label="click", title="A calibrated feed")
    figures = {"ndcg": ndcg, **before_and_after(calibrator, today)}
    if as_json:
        show(figures, as_json=True)
    else:
        tell(figures, folder)
    return figures


def _served(model: Any, log: Columns) -> dict[str, NDArray[Any]]:
    """The predictions that a trained model serves for the rows of a log."""
    with torch.no_grad():
        return {
            name: value.numpy() for name, value in model.serving().eval()(torch.from_numpy(log["features"])).items()
        }


def _scored(log: Columns, prob: NDArray[Any]) -> Columns:
    """The columns that a calibrator needs, with names instead of ids."""
    device = np.array(DEVICES)[log["device"]]
    position = np.array([f"position {place + 1:02d}" for place in range(CONTEXTS["position"])])[log["position"]]
    return {"prob": prob.astype(np.float64), "device": device, "position": position, "click": log["click"]}


def _calibrated(log: Columns, prob: NDArray[Any], path: Path) -> IsotonicCalibrator:
    """A calibrator fitted to a log of probabilities, which is written as a file first."""
    pq.write_table(pa.table(dict(_scored(log, prob))), path)
    calibrator = IsotonicCalibrator(("device", "position"), scale="prob")
    return calibrator.fit_table(path, score="prob", label="click")


def models(features: int) -> dict[str, nn.Module]:
    """The rankers that are compared, with backbones of the same size."""

    def backbone(inputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU())

    torch.manual_seed(0)
    dropout = PositionDropout(backbone(features + 4 * len(CONTEXTS)), width=WIDTH, contexts=CONTEXTS, drop=0.15)
    dual = DualHead(
        backbone(features), width=WIDTH, tasks=("click",), contexts=CONTEXTS, alpha=0.25, beta=0.75, anchor="detached"
    )
    return {"naive": Naive(backbone(features), width=WIDTH), "position dropout": dropout, "dual head": dual}


def fitted(model: nn.Module, log: Path, folder: Path, *, quick: bool) -> Any:
    """The model, trained on the log."""
    columns = [name for name in pq.read_schema(log).names if name.startswith("feature_")]
    fit = Fit(epochs=2 if quick else 5, patience=5, lr=5e-3, batch_size=1024, progress=False)
    trained = train(model, log, features=columns, tasks=["click"], contexts=list(CONTEXTS), folder=folder, fit=fit)
    return trained.model


def write_log(log: Columns, path: Path) -> None:
    """A log as an engineer would have it: features, positions and clicks, without the simulated truth."""
    features = {f"feature_{i}": log["features"][:, i] for i in range(log["features"].shape[1])}
    seen = {name: log[name] for name in ("session", "item", "position", "device", "click")}
    pq.write_table(pa.table({**features, **seen}), path)


def before_and_after(calibrator: IsotonicCalibrator, log: Columns) -> dict[str, Any]:
    """Log loss, and the mean distance of observed over expected from 1 by context, before and after calibration."""
    context = {name: log[name] for name in ("device", "position")}
    figures: dict[str, Any] = {}
    for when, prob in (("before", log["prob"]), ("after", calibrator.curves_.predict_proba(log["prob"], context))):
        table = metrics.observed_over_expected(log["click"], prob, context)
        figures[f"log_loss_{when}"] = metrics.log_loss(log["click"], prob)
        figures[f"oe_error_{when}"] = float(np.average(np.abs(table.ratio - 1), weights=table.weight))
    return figures


def tell(figures: Mapping[str, Any], folder: Path) -> None:
    """Print the table of rankers, and five lines about the results."""
    table = Table("ranker", "nDCG@10 against true relevance", box=None, pad_edge=False)
    for name, value in figures["ndcg"].items():
        table.add_row(name, f"{value:.3f}")
    out, ndcg = Console(highlight=False), figures["ndcg"]
    out.print(table)
    out.print(
        f"1. The log showed the wrong items first. A model that takes its clicks at face value has nDCG "
        f"{ndcg['naive']:.3f}.\n"
        f"2. A model that gets the position in training, but not in serving: {ndcg['position dropout']:.3f}.\n"
        f"3. A dual head, which learns one curve per position from relevance to clicks: {ndcg['dual head']:.3f}.\n"
        f"4. Its probabilities, calibrated by device and position: log loss {figures['log_loss_before']:.4f} -> "
        f"{figures['log_loss_after']:.4f}, mean error of O/E {figures['oe_error_before']:.3f} -> "
        f"{figures['oe_error_after']:.3f}.\n"
        f"5. Open {folder / 'report.html'} to see the report. {folder / 'curves.onnx'} and {folder / 'curves.sql'} "
        "serve the calibrator.\n"
        "\nTo try next:\n" + "\n".join(f"  {command}" for command in next_commands(folder)),
        soft_wrap=True,
    )


def next_commands(folder: Path) -> list[str]:
    """What to type after the demonstration, quoted for the shell."""
    steps = (
        ["show", folder / "curves.parquet"],  # what is stored in the calibrator
        ["diagnose", folder / "log.parquet", "--label", "click"],  # whether the log shows the effect of position
        ["example"],  # a log of scores for the first five minutes
    )
    return [shlex.join(["isolayer", *map(str, step)]) for step in steps]
