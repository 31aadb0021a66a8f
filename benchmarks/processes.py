"""Training from Parquet in two processes against one: the passes over the log, and the whole command.

Run alone, on two idle cores: ``python -m benchmarks processes``. Each process has one thread. Every command is run with
one pass and with four; the difference is three passes, without what a command does once: importing, checking the log,
fitting the served curve, exporting. Both take the same steps. What does not grow with the rows of a step (calls of
small operations, the optimiser, one message) is not halved by a second process, so a small and a large batch are shown.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import Row, progress, quick
from isolayer.simulate import debias_feed

TARGET = 1.6
FEW, MANY = 1, 4  # passes
BATCHES = (8192, 65_536)  # rows of a step, of both processes together
OPTIONS = ("--features", "f*", "--contexts", "position:10,device:3", "--json")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


class Run(NamedTuple):
    """One command: how long it took, and the steps it made."""

    seconds: float
    steps: int


def run() -> list[Row]:
    rows = 200_000 if quick() else 5_000_000
    with tempfile.TemporaryDirectory(prefix="isolayer-") as folder:
        log = Path(folder) / "log.parquet"
        write_log(log, rows)
        return [row for batch in BATCHES for row in _compared(log, rows, batch)]


def _compared(log: Path, rows: int, batch: int) -> list[Row]:
    found: dict[tuple[int, int], Run] = {}
    for epochs in (FEW, MANY):
        for processes in (1, 2):
            runs = [_command(log, processes, epochs, batch) for _ in range(1 if quick() else 2)]
            found[processes, epochs] = one = min(runs)
            told = f"{one.seconds:.1f} s, {one.steps} steps; load {os.getloadavg()[0]:.1f}"
            progress(f"batch {batch}, processes {processes}, epochs {epochs}: {told}")
    assert abs(found[1, MANY].steps - found[2, MANY].steps) <= MANY, "the processes left rows out"
    passes = {count: found[count, MANY].seconds - found[count, FEW].seconds for count in (1, 2)}
    whole = {count: found[count, MANY].seconds for count in (1, 2)}
    speed = (MANY - FEW) * rows / passes[1] / 1e6
    log_size, size = f"{rows / 1e6:g}M rows", f"{batch:,} rows a step"
    return [
        _row(f"passes over {log_size}, {size}", passes, f"{speed:.2f}M rows a second by one"),
        _row(f"the command, {MANY} passes, {size}", whole, f"{whole[1]:.0f} s by one", judged=False),
    ]


def write_log(path: Path, rows: int) -> None:
    """A simulated log as Parquet, in row groups of 65,536 rows."""
    writer = None
    for part in debias_feed("position").batches(rows // 10, seed=1):
        columns: dict[str, Any] = {f"f{i}": part["features"][:, i] for i in range(part["features"].shape[1])}
        table = pa.table(columns | {name: part[name] for name in ("position", "device", "click", "session")})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=65_536)
    assert writer is not None
    writer.close()


def _command(log: Path, processes: int, epochs: int, batch: int) -> Run:
    """One training command."""
    import torch

    folder = log.parent / "model"
    options = [*OPTIONS, "--batch-size", str(batch), "--epochs", str(epochs), "--out", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *(TORCHRUN if processes > 1 else ()), "-m", "isolayer", "train", str(log), *options]
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    seconds = time.perf_counter() - start
    return Run(seconds, torch.load(folder / "last.ckpt", weights_only=True)["global_step"])


def _row(what: str, seconds: dict[int, float], note: str, *, judged: bool = True) -> Row:
    ratio = seconds[1] / seconds[2]
    return Row(
        f"two processes over one: {what}",
        f">= {TARGET}" if judged else "shown",
        f"{ratio:.2f} ({note})",
        ratio >= TARGET if judged else None,
    )
