"""Every command on every odd log with every odd option: a mistake is one line and code 2, never a traceback.

``PYTHONPATH=tests python -m chaos.commands`` runs them all and counts how they ended; the suite runs a sample.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from isolayer import cli

ROWS = 400


def good_log() -> pa.Table:
    """A sound log, from which the odd ones differ in one thing."""
    draw = np.random.default_rng(0)
    prob = draw.beta(2, 5, ROWS)
    return pa.table(
        {
            "prob": prob,
            "click": (draw.random(ROWS) < prob).astype(np.int8),
            "device": draw.choice(["tv", "web"], ROWS),
            "position": draw.integers(0, 5, ROWS),
            "item": draw.integers(0, 40, ROWS),
            "day": pa.array([date(2026, 1, 1 + i % 28) for i in range(ROWS)]),
            "feature_0": draw.normal(size=ROWS),
            "feature_1": draw.normal(size=ROWS),
        }
    )


def odd_columns() -> Iterator[tuple[str, str, pa.Array]]:
    """What is odd, the column it replaces, and the column."""
    yield "nan", "prob", pa.array([float("nan"), 0.5] * (ROWS // 2))
    yield "infinite", "prob", pa.array([float("inf"), 0.5] * (ROWS // 2))
    yield "large", "prob", pa.array([1e308, -1e308] * (ROWS // 2))
    yield "null_score", "prob", pa.array([None, 0.5] * (ROWS // 2))
    yield "text_score", "prob", pa.array(["0.5"] * ROWS)
    yield "constant", "prob", pa.array([0.25] * ROWS)
    yield "nested", "prob", pa.array([{"a": 1}] * ROWS)
    yield "decimal", "prob", pa.array([Decimal("0.25"), Decimal("0.75")] * (ROWS // 2))
    yield "times", "prob", pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * ROWS)
    yield "one_class", "click", pa.array([1] * ROWS)
    yield "null_label", "click", pa.array([None] * ROWS, pa.int8())
    yield "label_2", "click", pa.array([0, 2] * (ROWS // 2))
    yield "text_label", "click", pa.array(["yes", "no"] * (ROWS // 2))
    yield "bool_label", "click", pa.array([True, False] * (ROWS // 2))
    yield "null_context", "device", pa.array([None, "tv"] * (ROWS // 2))
    yield "float_context", "device", pa.array([0.5, 1.5] * (ROWS // 2))
    yield "list_context", "device", pa.array([[1], [2]] * (ROWS // 2))
    yield "odd_names", "device", pa.array(["\x1b[2J", "a\0b", "", "\u2028"] * (ROWS // 4))
    yield "dates", "device", pa.array([date(2026, 1, 1), date(2026, 1, 2)] * (ROWS // 2))
    yield "large_position", "position", pa.array([2**62, -(2**62)] * (ROWS // 2))
    yield "huge_feature", "feature_0", pa.array([1e30, -1.0] * (ROWS // 2))
    yield "nan_feature", "feature_0", pa.array([float("nan"), 1.0] * (ROWS // 2))


def write_logs(folder: Path) -> list[str]:
    """Odd logs in a folder; returns their names."""
    good = good_log()
    pq.write_table(good, folder / "good.parquet")
    pq.write_table(good.slice(0, ROWS // 2), folder / "half.parquet")
    pq.write_table(good.slice(0, 0), folder / "no_rows.parquet")
    pq.write_table(good.slice(0, 1), folder / "one_row.parquet")
    for name, column, values in odd_columns():
        place = good.column_names.index(column)
        pq.write_table(good.set_column(place, column, values), folder / f"{name}.parquet")
    pq.write_table(
        good.rename_columns(["prob", "click", "device", "Device", *good.column_names[4:]]), folder / "case.parquet"
    )
    whole = (folder / "good.parquet").read_bytes()
    (folder / "truncated.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "flipped.parquet").write_bytes(whole[:200] + bytes([whole[200] ^ 255]) + whole[201:])
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "empty.csv").write_bytes(b"")
    (folder / "header.csv").write_text("prob,click,device\n")
    (folder / "ragged.csv").write_text("prob,click,device\n0.5,1,tv\n0.5\n0.5,1,tv,extra,more\n")
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 4)
    (folder / "bom.csv").write_bytes(b"\xef\xbb\xbfprob,click\n0.2,0\n0.8,1\n0.4,0\n0.6,1\n")
    (folder / "broken.json").write_text('{"prob": 0.5, "click": ')
    (folder / "empty_folder").mkdir()
    (folder / "not a log").write_text("prob,click\n0.5,1\n")
    return sorted(path.name for path in folder.iterdir())


def commands(logs: list[str]) -> list[list[str]]:
    """All combinations that are tried."""
    found = list[list[str]]()
    shapes = (
        ["fit", "LOG", "--score", "prob", "--scale", "prob", "--label", "click"],
        ["fit", "LOG", "--score", "prob", "--scale", "logit", "--label", "click", "--contexts", "device,position"],
        ["fit", "LOG", "--contexts", "device", "--on-bad-rows", "drop", "--sums", "new_sums.parquet"],
        ["apply", "LOG", "--curves", "curves.parquet"],
        ["check", "LOG", "--curves", "curves.parquet", "--score", "prob", "--label", "click"],
        ["report", "LOG", "--curves", "curves.parquet", "--score", "prob", "--label", "click", "--date", "day"],
        ["update", "sums.parquet", "LOG", "--curves", "curves.parquet", "--score", "prob", "--label", "click"],
        ["diagnose", "LOG", "--label", "click"],
        ["diagnose", "LOG", "--label", "click", "--features", "feature_*"],
        ["export", "LOG"],
        ["show", "LOG"],
        ["compare", "curves.parquet", "LOG"],
        ["score", "LOG", "--features", "feature_*", "--model", "LOG"],
        ["train", "LOG", "--features", "feature_*", "--contexts", "position:5", "--epochs", "1"],
        ["update", "LOG", "half.parquet", "--curves", "curves.parquet"],
    )
    for shape, log in itertools.product(shapes, logs):
        found.append([log if word == "LOG" else word for word in shape])
    options = {
        "--score": ["", "nope", "device", "prob,click", "[]"],
        "--label": ["", "nope", "prob", "device"],
        "--scale": ["", "auto", "LOGIT"],
        "--contexts": ["", "nope", "device,device", "prob", '["device"', "[1]", ",,"],
        "--weight": ["nope", "device", "prob", "click"],
        "--negative-rate": ["0", "-1", "2", "nan", "device", "1e-300", "prob"],
        "--on-bad-rows": ["", "ignore"],
        "--out": ["", ".", "/", "no/where.parquet", "good.parquet", "a" * 300, "x\0y"],
        "--keep": ["0", "-1", "2", "nan", "inf", "x"],
        "--id": ["", "2026-11-16", "\x1b[2J"],
        "--level": ["0", "1", "nan", "-3"],
        "--tolerance": ["-1", "nan", "inf"],
        "--top": ["0", "-5", "x"],
        "--dialect": ["", "oracle"],
        "--most": ["-1", "nan"],
        "--date": ["nope", "device", "prob"],
        "--bias": ["good.parquet", "nope"],
        "--features": ["", "nope", "*", "device", "feature_*,nope"],
        "--hidden": ["", "0", "x", "-1"],
        "--tasks": ["", "nope", "device", "prob"],
        "--alpha": ["-1", "nan"],
        "--lr": ["0", "nan", "-1"],
        "--batch-size": ["0", "-1"],
        "--epochs": ["0", "-1"],
        "--sessions": ["0", "x"],
        "--clicks": ["", "nope"],
    }
    bases = (
        ["fit", "good.parquet", "--scale", "prob"],
        ["apply", "good.parquet"],
        ["check", "good.parquet"],
        ["report", "good.parquet"],
        ["update", "sums.parquet", "half.parquet"],
        ["compare", "curves.parquet", "curves.parquet"],
        ["export", "curves.parquet", "--out", "x.sql"],
        ["train", "good.parquet", "--contexts", "position:5", "--features", "feature_*", "--epochs", "1"],
        ["simulate"],
        ["diagnose", "good.parquet"],
    )
    for base, (option, values) in itertools.product(bases, options.items()):
        found += [[*base, option, value] for value in values]
    return found


def outcome(command: list[str]) -> tuple[str, str]:
    """How a command ended, and what it said: "ok", "verdict" (code 1), "mistake" (code 2) or "traceback"."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["isolayer", *command]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            code = cli.run()
        except BaseException:  # whatever escapes is what this looks for
            return "traceback", traceback.format_exc()
    return {0: "ok", 1: "verdict", 2: "mistake"}.get(code, f"code {code}"), err.getvalue()


def campaign(sample: int | None = None, seed: int = 0) -> tuple[Counter[str], list[tuple[list[str], str]]]:
    """Run all commands, or a sample of them; counts by outcome, and those that ended in a traceback."""
    counts, faults = Counter[str](), list[tuple[list[str], str]]()
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            logs = write_logs(Path(name))
            outcome(["fit", "good.parquet", "--scale", "prob", "--contexts", "device", "--sums", "sums.parquet"])
            kept = {path: Path(path).read_bytes() for path in ("good.parquet", "curves.parquet", "sums.parquet")}
            every = commands(logs)
            for command in every if sample is None else random.Random(seed).sample(every, sample):
                how, said = outcome(command)
                counts[how] += 1
                if how not in ("ok", "verdict", "mistake"):
                    faults.append((command, said))
                for path, content in kept.items():
                    Path(path).write_bytes(content)
        finally:
            os.chdir(here)
    return counts, faults


if __name__ == "__main__":
    counted, found = campaign()
    for command, said in found:
        print("isolayer", *command, "\n", said, "\n", file=sys.stderr)
    print(json.dumps({"commands": sum(counted.values()), **counted}))
    raise SystemExit(1 if found else 0)
