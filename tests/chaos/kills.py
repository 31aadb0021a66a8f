"""Kills: a writer of files that belong together is killed at a random moment; what is left is old or new, never mixed.

``PYTHONPATH=tests python -m chaos.kills --kills 300`` kills that many writers and counts what they left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from isolayer.curves.curves import Curves
from isolayer.fitting.histogram import Histogram
from isolayer.storage import read_set, whole_file

# Each writer says "ready" after its first write, then writes generation after generation until it is killed.
CURVES_AND_SUMS = """
import sys
from pathlib import Path
from chaos.kills import day
from isolayer.curves.curves import Curves
from isolayer.storage import locked, whole_files
folder, seed = Path(sys.argv[1]), int(sys.argv[2])
sums, curves = folder / "sums.parquet", folder / "served" / "curves.parquet"
days = [day(seed), day(seed + 1)]
fits = [Curves.from_histogram(one) for one in days]
while True:
    for one, fit in zip(days, fits):
        with locked(sums, curves), whole_files(sums, curves) as (first, second):
            one.save(first)
            fit.save(second)
        print("ready", flush=True)
"""
MODEL = """
import sys
from pathlib import Path
from isolayer.storage import whole_files
folder, number = Path(sys.argv[1]) / "model", int(sys.argv[2])
names = ["model.safetensors", "serving.onnx", "model.json"]
while True:
    number += 1
    with whole_files(*(folder / name for name in names), manifest=folder / "manifest.json") as parts:
        for part in parts:
            part.write_text(f"{part.name} {number} " * 2000)
    print("ready", flush=True)
"""
ONE_FILE = """
import sys
from pathlib import Path
from chaos.kills import day
from isolayer.curves.curves import Curves
path, seed = Path(sys.argv[1]) / "alone.parquet", int(sys.argv[2])
fits = [Curves.from_histogram(day(seed)), Curves.from_histogram(day(seed + 1))]
while True:
    for fit in fits:
        fit.save(path)
        print("ready", flush=True)
"""
WRITERS = {"curves and sums": CURVES_AND_SUMS, "model": MODEL, "one file": ONE_FILE}


def day(seed: int) -> Histogram:
    """Sums of a few rows."""
    draw = random.Random(seed)
    score = [draw.gauss(0, 1) for _ in range(60)]
    device = [draw.choice(["tv", "web"]) for _ in score]
    return Histogram.from_arrays(score, [int(draw.random() < 0.4) for _ in score], {"device": device})


def kill_one(folder: Path, code: str, seed: int, delay: float) -> None:
    """Start a writer and kill it some time after it is ready."""
    command = [sys.executable, "-c", code, str(folder), str(seed)]
    paths = [str(Path(__file__).parents[1]), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)


def verdict(folder: Path, writer: str) -> str:
    """What a killed writer left: "whole", or what is wrong with it."""
    if writer == "curves and sums":
        sums = Histogram.load(folder / "sums.parquet")
        Curves.load(folder / "served" / "curves.parquet").check_sums(sums)
    elif writer == "model":
        contents = read_set(folder / "model" / "manifest.json")
        if len({content.split()[1] for content in contents.values()}) != 1:
            return "a mixture"
    else:
        Curves.load(folder / "alone.parquet")
    return "whole"


def left_over(folder: Path) -> list[str]:
    """Files that are neither a target nor a folder, once the next write has swept."""
    for place in (folder, folder / "served", folder / "model"):
        with whole_file(place / "next") as part:
            part.write_text("")
        (place / "next").unlink()
    return [str(path) for path in folder.rglob(".*")]


def campaign(kills: int, seed: int = 0) -> Counter[str]:
    """Kill writers in turn; how often what they left was whole, and everything else that was found."""
    draw, found = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for inner in ("served", "model"):
            (folder / inner).mkdir()
        for number in range(kills):
            writer = list(WRITERS)[number % len(WRITERS)]
            kill_one(folder, WRITERS[writer], 2 * number, 0.3 * draw.random())
            found["interrupted while writing"] += any(folder.rglob(".*"))
            try:
                found[verdict(folder, writer)] += 1
            except ValueError as error:
                found[f"{writer}: {error}"] += 1
        found["left over"] = len(left_over(folder))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=300)
    counted = campaign(parser.parse_args().kills)
    print(json.dumps({"campaign": "kills", **counted}))
    raise SystemExit(counted["whole"] != sum(counted.values()) - counted["interrupted while writing"])
