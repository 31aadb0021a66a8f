"""Races: two `isolayer update` at once on the same sums; the result is the fit of all days, none of them lost.

``PYTHONPATH=tests python -m chaos.races --races 50`` runs that many races of real commands.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from isolayer.curves.curves import Curves
from isolayer.fitting.histogram import Histogram

ROWS = 50


def isolayer(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """Start a command in a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "isolayer", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, stdout=subprocess.PIPE
    )


def write_day(path: Path, seed: int) -> None:
    """A log of one day."""
    rng = np.random.default_rng(seed)
    prob = rng.beta(2, 5, ROWS)
    label = np.where(np.arange(ROWS) < 2, [0, 1] * (ROWS // 2), rng.random(ROWS) < prob).astype(np.int8)
    pq.write_table(pa.table({"prob": prob, "click": label}), path)


def ended(command: subprocess.Popen[str]) -> int:
    """The code a command ended with; what it said is shown if that is not 0."""
    _, said = command.communicate()
    if command.returncode:
        print(said, file=sys.stderr)
    return command.returncode


def campaign(races: int) -> Counter[str]:
    """Run races; how many kept both days, and everything else that was found."""
    found = Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_day(folder / "0.parquet", 0)
        fit = isolayer("fit", "0.parquet", "--scale", "prob", "--sums", "sums.parquet", folder=folder)
        assert ended(fit) == 0
        for race in range(races):
            days = 2 * race + 1, 2 * race + 2
            for day in days:
                write_day(folder / f"{day}.parquet", day)
            before = Histogram.load(folder / "sums.parquet").rows
            running = [isolayer("update", "sums.parquet", f"{day}.parquet", folder=folder) for day in days]
            codes = [ended(one) for one in running]
            sums = Histogram.load(folder / "sums.parquet")
            Curves.load(folder / "curves.parquet").check_sums(sums)
            kept = codes == [0, 0] and sums.rows == before + 2 * ROWS
            found["both days kept" if kept else f"codes {codes}, {sums.rows - before} rows added"] += 1
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--races", type=int, default=50)
    counted = campaign(parser.parse_args().races)
    print(json.dumps({"campaign": "races of update", "races": counted.total(), **counted}))
    raise SystemExit(counted["both days kept"] != counted.total())
