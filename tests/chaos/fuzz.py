"""Fuzz: damaged files of curves and sums are refused by an InputError, or load as exactly what was saved.

``PYTHONPATH=tests python -m chaos.fuzz --seconds 600`` damages files for that long and counts how they ended.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting import packed_level
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid

GRID = Grid(lower=-2, upper=2, step=0.5)
ARRAYS = {
    Curves: ("values", "variance", "knot_weight", "count"),
    Histogram: ("group", "fold", "bin", "count", "weight", "weight_squared", "positive", "logit"),
}
FACTS = {
    Curves: ("grid", "contexts", "scale", "extrapolation", "kind", "score_name", "label_name", "source", "settings"),
    Histogram: ("grid", "contexts", "source"),
}
Damage = Callable[[bytearray, random.Random], None]


def examples() -> list[Any]:
    """Curves and sums, without contexts and with two of them, keys missing included."""
    rng = np.random.default_rng(0)
    score, label = rng.normal(size=400), rng.integers(0, 2, 400)
    device = rng.choice(np.array(["tv", "web", None]), 400)
    by_two = {"device": device, "slot": rng.integers(0, 4, 400)}
    sums = [Histogram.from_arrays(score, label, context, grid=GRID) for context in ({}, by_two)]
    return [*sums, *(Curves.from_histogram(one) for one in sums), packed_curves()]


def packed_curves(contexts: int = 40, seed: int = 0) -> Curves:
    """Curves as there are of very many contexts, but few of them."""
    rng = np.random.default_rng(seed)
    shop, score = rng.integers(0, contexts, 30 * contexts), rng.normal(size=30 * contexts)
    label = rng.random(len(shop)) < 1 / (1 + np.exp(-score - np.sin(shop)))
    sums = Histogram.from_arrays(score, label, {"shop": shop}, grid=GRID)
    with mock.patch.multiple(packed_level, PACKED_FROM=0, _LEVEL_FROM=2):
        return Curves.from_histogram(sums)


def content(thing: Any) -> list[Any]:
    """Everything in curves or sums, as values that can be compared for being the same to the bit."""
    keys = thing.keys if isinstance(thing, Histogram) else [key for level in thing.keys for key in level]
    arrays = [np.asarray(getattr(thing, name)) for name in ARRAYS[type(thing)]]
    facts = [repr(getattr(thing, name)) for name in FACTS[type(thing)]]
    return [facts, [key.tolist() for key in keys], [(one.dtype.str, one.shape, one.tobytes()) for one in arrays]]


def footer_start(file: bytearray) -> int:
    """Where the footer of a Parquet file starts."""
    return max(4, len(file) - 8 - struct.unpack("<I", file[-8:-4])[0])


def flip(file: bytearray, draw: random.Random) -> None:
    """Flip one bit anywhere."""
    file[draw.randrange(len(file))] ^= 1 << draw.randrange(8)


def flip_footer(file: bytearray, draw: random.Random) -> None:
    """Flip one to three bits of the footer."""
    start = footer_start(file)
    for _ in range(draw.randint(1, 3)):
        file[draw.randrange(start, len(file))] ^= 1 << draw.randrange(8)


def set_footer(file: bytearray, draw: random.Random) -> None:
    """Set a byte of the footer to another, such as a count or a type."""
    file[draw.randrange(footer_start(file), len(file))] = draw.choice([0, 1, 2, 0x7F, 0x80, 0xFF, draw.randrange(256)])


def cut(file: bytearray, draw: random.Random) -> None:
    """Lose the end, or a piece in the middle."""
    start = draw.randrange(len(file))
    del file[start : draw.choice([len(file), start + draw.randint(1, 64)])]


def swap(file: bytearray, draw: random.Random) -> None:
    """Exchange or repeat a piece."""
    size = draw.randint(1, 64)
    one, two = (draw.randrange(max(1, len(file) - size)) for _ in range(2))
    file[one : one + size] = file[two : two + size]


def edit_text(file: bytearray, draw: random.Random) -> None:
    """Change a letter or a digit of the facts."""
    start = file.find(b"{", footer_start(file))
    end = file.rfind(b"}")
    if 0 <= start < end:
        file[draw.randrange(start, end + 1)] = draw.choice(b'0123456789abcdefglopqrt{}[]",:.-e ')


DAMAGES: tuple[Damage, ...] = (flip, flip_footer, set_footer, cut, swap, edit_text)


def campaign(seconds: float, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Damage files until the time is over; counts by how they ended, and the faults."""
    draw, found, faults = random.Random(seed), Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        path, saved = Path(folder) / "file.parquet", list[tuple[Any, bytes, list[Any]]]()
        for thing in examples():
            thing.save(path)
            saved.append((type(thing), path.read_bytes(), content(type(thing).load(path))))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            kind, sound, expected = draw.choice(saved)
            damage, file = draw.choice(DAMAGES), bytearray(sound)
            damage(file, draw)
            path.write_bytes(file)
            how, why = _outcome(kind, path, expected)
            found[how] += 1
            if how not in ("refused", "the same"):
                faults.append(f"{kind.__name__} {damage.__name__}: {how} {why}")
    return found, faults


def _outcome(kind: Any, path: Path, expected: list[Any]) -> tuple[str, str]:
    try:
        loaded = kind.load(path)
    except InputError:
        return "refused", ""
    except Exception:  # whatever else escapes is what this looks for
        return "another exception", traceback.format_exc()
    return ("the same", "") if content(loaded) == expected else ("something else", "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counted, wrong = campaign(given.seconds, given.seed)
    for fault in wrong[:20]:
        print(fault)
    print(json.dumps({"campaign": "fuzz", "files": counted.total(), "faults": len(wrong), **counted}))
    raise SystemExit(bool(wrong))
