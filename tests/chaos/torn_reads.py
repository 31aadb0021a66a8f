"""Torn reads: a reader against a writer that replaces the file again and again; every read is one release, whole.

``PYTHONPATH=tests python -m chaos.torn_reads --reads 50000`` counts reads, and those that were torn or refused.
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

from isolayer.curves.curves import Curves
from isolayer.grid import Grid

RELEASES = (-1.0, 0.0, 2.5)
WRITER = """
import sys
from chaos.torn_reads import RELEASES, release
releases = [release(shift) for shift in RELEASES]
print("ready", flush=True)
while True:
    for one in releases:
        one.save(sys.argv[1])
"""


def release(shift: float) -> Curves:
    """Curves that are off by one number everywhere, values, variances and facts alike."""
    grid = Grid(lower=-2, upper=2, step=0.5)
    values = np.tile(grid.knots[1:] + shift, (3, 1))
    same, keys = np.full_like(values, shift + 2), ((), (np.array(["tv", "web"]),))
    settings = {"shift": shift}
    return Curves(grid, ("device",), keys, values, same, same, np.full(3, shift + 2), settings=settings)


def campaign(reads: int) -> Counter[str]:
    """Read while another process writes; counts of what was read."""
    found = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "curves.parquet"
        release(RELEASES[0]).save(path)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            try:
                for _ in range(reads):
                    found[_read(path)] += 1
            finally:
                writer.kill()
    return found


def _read(path: Path) -> str:
    try:
        curves = Curves.load(path)
    except ValueError as error:
        return f"refused: {error}"
    shift = curves.settings["shift"]
    expected = release(shift)
    same = all(
        np.array_equal(getattr(curves, name), getattr(expected, name))
        for name in ("values", "variance", "knot_weight", "count")
    )
    return f"release {shift}" if same else "torn"


def faults(found: Counter[str]) -> int:
    """How many reads were not one whole release."""
    return sum(count for name, count in found.items() if not name.startswith("release"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--reads", type=int, default=50_000)
    counted = campaign(parser.parse_args().reads)
    print(json.dumps({"campaign": "torn reads", "reads": counted.total(), "faults": faults(counted), **counted}))
    raise SystemExit(bool(faults(counted)))
