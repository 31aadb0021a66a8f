"""Training from Parquet in two processes against one: the passes over the log, and the whole command.

Run alone, on two idle cores: ``python -m benchmarks processes``. Each process has one thread. Every command is run with
one pass and with four; the difference is three passes, without what a command does once: importing, checking the log,
fitting the served curve, exporting.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import Row, progress, quick
from isolayer.simulate import debias_feed

TARGET = 1.6
FEW, MANY = 1, 4  # passes
OPTIONS = ("--features", "f*", "--contexts", "position:10,device:3", "--batch-size", "8192", "--json")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


def run() -> list[Row]:
    rows = 100_000 if quick() else 5_000_000
    with tempfile.TemporaryDirectory(prefix="isolayer-") as folder:
        log = Path(folder) / "log.parquet"
        write_log(log, rows)
        seconds = {
            (processes, epochs): min(_command(log, processes, epochs) for _ in range(1 if quick() else 2))
            for epochs in (FEW, MANY)
            for processes in (1, 2)
        }
    for (processes, epochs), time_ in seconds.items():
        progress(f"processes {processes}, epochs {epochs}: {time_:.1f} s; load {os.getloadavg()[0]:.1f}")
    passes = {count: seconds[count, MANY] - seconds[count, FEW] for count in (1, 2)}
    whole = {count: seconds[count, MANY] for count in (1, 2)}
    read = (MANY - FEW) * rows
    return [
        _row(f"passes over {rows / 1e6:g}M rows", passes, f"{read / passes[1] / 1e6:.2f}M rows a second by one"),
        _row(f"the command, {MANY} passes over {rows / 1e6:g}M rows", whole, f"{whole[1]:.0f} s by one", judged=False),
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


def _command(log: Path, processes: int, epochs: int) -> float:
    """Seconds of one training command."""
    module = (
        "-m",
        "isolayer",
        "train",
        str(log),
        *OPTIONS,
        "--epochs",
        str(epochs),
        "--out",
        str(log.parent / "model"),
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    command = [sys.executable, *(TORCHRUN if processes > 1 else ()), *module]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


def _row(what: str, seconds: dict[int, float], note: str, *, judged: bool = True) -> Row:
    ratio = seconds[1] / seconds[2]
    return Row(
        f"two processes over one: {what}",
        f">= {TARGET}" if judged else "shown",
        f"{ratio:.2f} ({note})",
        ratio >= TARGET if judged else None,
    )
