"""Engines: random curves and rows through numpy, DuckDB, Postgres, Spark, ONNX and torch, which must all agree.

``PYTHONPATH=tests python -m chaos.engines --seconds 600`` draws cases for that long. Every round has its own seed, from
which ``--seed N --rounds 1`` draws the same cases again. The short form, a table of cases, is ``test_engines.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import string
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import servers
import torch
from engines import EMBEDDED, Case, Postgres, Refused, Spark, Unheld, answers, oracle

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import logit_of, prob_of
from isolayer.grid import Grid

CASES = 20  # per round
LETTERS = [
    *string.ascii_letters[:4],
    "A",
    "é",
    "ß",
    "日",
    "🙂",
    "'",
    '"',
    "\\",
    "`",
    "$",
    "{x}",
    "%",
    "\n",
    "\t",
    " ",
    "\0",
    "\u2028",
]
WHOLE = [-(2**63), -(2**53) - 1, -(2**31), -1, 0, 1, 2, 7, 127, 2**24, 2**31, 2**53 + 1, 2**63 - 1]
ODD_SCORES = [None, float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e308, -1e308, 5e-324, 1.0, 1.7, 40.0, -900.0]


def case(rng: np.random.Generator) -> Case:
    """Random curves, with up to two contexts, and random rows to ask them about."""
    grid = Grid(
        lower=float(rng.choice([-17, -4, -0.5])),
        upper=float(rng.choice([0.5, 4, 8])),
        step=float(rng.choice([0.1, 0.25, 0.5])),
    )
    vocabularies = [vocabulary(rng) for _ in range(rng.integers(0, 3))]
    names = ("context", "second")[: len(vocabularies)]
    levels = [(), *nested(vocabularies, rng)]
    count = 1 + sum(len(level[0]) for level in levels[1:])
    values = curves_like(rng, count, grid)
    nothing, scale = np.zeros_like(values), str(rng.choice(["logit", "prob"]))
    extrapolation = str(rng.choice(["extend", "clip"]))
    curves = Curves(grid, names, tuple(levels), values, nothing, nothing, np.zeros(count), scale, extrapolation)
    size = int(rng.integers(0, 40))
    columns = {name: asked(rng, words, size) for name, words in zip(names, vocabularies, strict=True)}
    return curves, pa.table({"id": np.arange(size), "score": scores(rng, grid, scale, size), **columns})


def vocabulary(rng: np.random.Generator) -> list[Any]:
    """Distinct values of a context, sometimes with the missing one: strings, integers or booleans."""
    kind = rng.integers(0, 5)
    if kind < 2:
        words: set[Any] = {
            "".join(rng.choice(LETTERS, rng.integers(0, 5))).rstrip("\0") for _ in range(rng.integers(1, 7))
        }
    elif kind < 4:
        words = {int(WHOLE[place]) for place in rng.integers(0, len(WHOLE), rng.integers(1, 7))}
    else:
        words = set(rng.choice([False, True], rng.integers(1, 3)).tolist())
    return sorted(words) + ([None] if rng.random() < 0.4 else [])


def nested(vocabularies: list[list[Any]], rng: np.random.Generator) -> Iterator[tuple[np.ndarray, ...]]:
    """Keys of each level: all values of the first context, and some pairs with those of the second."""
    if vocabularies:
        yield (keys_of(vocabularies[0]),)
    if len(vocabularies) == 2:
        pairs = [(one, two) for one in vocabularies[0] for two in vocabularies[1]]
        kept = [pair for pair in pairs if rng.random() < 0.7] or pairs[:1]
        yield keys_of([one for one, _ in kept]), keys_of([two for _, two in kept])


def keys_of(words: list[Any]) -> np.ndarray:
    return np.array(words, dtype=object) if None in words else np.array(words)


def curves_like(rng: np.random.Generator, count: int, grid: Grid) -> np.ndarray:
    """Values at the knots, non-decreasing, with flats and steps, shape ``[count, knots]``."""
    rises = rng.gamma(0.5, 1.0, (count, grid.buckets)) * grid.step * (rng.random((count, grid.buckets)) < 0.8)
    return rng.normal(-3, 3, (count, 1)) + np.cumsum(rises, axis=1)


def asked(rng: np.random.Generator, words: list[Any], size: int) -> pa.Array:
    """A column that asks for known, unknown and missing values, of a type that the values fit into."""
    known = [word for word in words if word is not None]
    if isinstance(known[0], str):
        unknown = ["unseen", "", "A", "a\0", " a", "null"]
        kind = pa.dictionary(pa.int32(), pa.string()) if rng.random() < 0.2 else pa.string()
        return pa.array(drawn(rng, [*known, *unknown, None], size), pa.string()).cast(kind)
    if isinstance(known[0], bool):
        return pa.array(drawn(rng, [False, True, None], size), pa.bool_())
    return numbers(rng, known, size)


def numbers(rng: np.random.Generator, known: list[int], size: int) -> pa.Array:
    """Integers, or floats and decimals where these tell the known ones apart."""
    largest = max(map(abs, known))
    kinds = ["int64", "decimal"] + ["double"] * 2 * (largest < 2**53) + ["float"] * (largest < 2**24)
    kinds += ["int32"] * (largest < 2**31) + ["uint64"] * (min(known) >= 0)
    kind = str(rng.choice(kinds))
    if kind == "decimal":
        words = [Decimal(word) for word in [*known, 3, 10**25]] + [Decimal("0.5"), Decimal("-7.25"), None]
        return pa.array(drawn(rng, words, size), pa.decimal128(38, 2))
    if kind in ("double", "float"):
        words = [float(word) for word in known] + [3.0, 0.5, -0.0, float("nan"), float("inf"), -float("inf"), None]
        return pa.array(drawn(rng, words, size), pa.float64() if kind == "double" else pa.float32())
    most = {"int64": 2**63 - 1, "int32": 2**31 - 1, "uint64": 2**64 - 1}[kind]
    return pa.array(drawn(rng, [*known, 3, most, None], size), getattr(pa, kind)())


def drawn(rng: np.random.Generator, words: list[Any], size: int) -> list[Any]:
    return [words[place] for place in rng.integers(0, len(words), size)]


def scores(rng: np.random.Generator, grid: Grid, scale: str, size: int) -> pa.Array:
    """Scores inside and outside the grid, at its knots, and such as cannot be used; doubles or single floats."""
    knots = grid.knots.tolist()
    usual = (
        rng.normal((grid.lower + grid.upper) / 2, grid.upper - grid.lower, size)
        if scale == "logit"
        else rng.beta(0.5, 0.5, size)
    )
    odd = [*ODD_SCORES, *(knots if scale == "logit" else [1e-300, 1 - 1e-16, 0.5])]
    values = [odd[rng.integers(0, len(odd))] if rng.random() < 0.4 else float(score) for score in usual]
    if rng.random() < 0.2:  # what single precision holds
        return pa.array(
            [None if value is None else float(np.float32(np.clip(value, -3e38, 3e38))) for value in values],
            pa.float32(),
        )
    return pa.array(values, pa.float64())


class Torch:
    """A layer, which reads logits and the rows of curves: eager, compiled or exported."""

    def __init__(self, way: str) -> None:
        self.way = way

    def __call__(self, curves: Curves, table: pa.Table) -> np.ndarray:
        score = np.array([np.nan if value is None else value for value in table["score"].to_pylist()], np.float64)
        good = np.isfinite(score) & ((score >= 0) & (score <= 1) if curves.scale == "prob" else True)
        if not good.any():
            raise Unheld("no logits")
        logit = torch.tensor(score[good] if curves.scale == "logit" else logit_of(score[good]))
        kept = table.filter(pa.array(good))
        context = {name: kept[name] for name in curves.contexts}
        inputs = (logit, {"curve": torch.tensor(curves.rows_of(context, len(logit)))}) if context else (logit,)
        answer = np.full(len(score), np.nan)
        answer[good] = prob_of(self.ready(curves.to_layer(), inputs)(*inputs)[:, 0].detach().numpy())
        return answer

    def ready(self, layer: Any, inputs: tuple[Any, ...]) -> Any:
        if self.way == "compiled":
            torch._dynamo.reset()
            return torch.compile(layer, dynamic=True)
        return torch.export.export(layer, inputs, strict=False).module() if self.way == "exported" else layer


def refusable(engine: str, table: pa.Table) -> bool:
    """Whether an engine may refuse it: inputs of ONNX are strings, booleans and integers of 64 bits, none missing."""
    if engine != "onnx" or any(table[name].null_count for name in table.column_names[2:]):
        return engine == "onnx"
    held = (pa.types.is_string, pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_dictionary)
    return not all(any(test(table[name].type) for test in held) for name in table.column_names[2:])


def verdict(engine: str, given: Case, answer: np.ndarray | Exception) -> str:
    """How an answer compares with the contract: agrees, refused, not held; anything else is a fault."""
    if isinstance(answer, Unheld):
        return "not held"
    if isinstance(answer, Refused):
        return "refused" if refusable(engine, given[1]) else f"FAULT refused: {answer}"
    want = oracle(*given)
    if answer.shape == want.shape and np.allclose(answer, want, rtol=0, atol=1e-9, equal_nan=True):
        return "agrees"
    return f"FAULT {answer.tolist()} for {want.tolist()}"


@contextlib.contextmanager
def engines() -> Iterator[dict[str, Any]]:
    """All engines, servers started once; those that are not installed are left out by name."""
    found: dict[str, Any] = {**EMBEDDED, "torch eager": Torch("eager")}
    with contextlib.ExitStack() as stack:
        for name, server, wrap in (("postgres", servers.postgres, Postgres), ("spark", servers.spark, Spark)):
            try:
                found[name] = wrap(stack.enter_context(server()))
            except servers.Absent as absent:
                print(f"without {name}: {absent}")
        yield found


def campaign(seconds: float, *, seed: int = 0, rounds: int | None = None) -> tuple[Counter[str], list[str]]:
    """Draw cases until the time is over; counts of verdicts by engine, and every fault with the seed of its round."""
    found, faults, end, number = Counter[str](), list[str](), time.monotonic() + seconds, 0
    with engines() as asked_about:
        while number < (rounds or number + 1) and (rounds or time.monotonic() < end):
            rng = np.random.default_rng(seed + number)
            cases = [case(rng) for _ in range(CASES)]
            jobs = {name: (engine, cases) for name, engine in asked_about.items()}
            jobs |= {f"torch {way}": (Torch(way), cases[:1]) for way in ("compiled", "exported")}  # slow to make
            for name, (engine, some) in jobs.items():
                for place, answer in enumerate(answers(engine, some)):
                    said = verdict(name, some[place], answer)
                    found[f"{name}: {said.split(' ')[0]}"] += 1
                    faults += (
                        [f"seed {seed + number}, case {place}, {name}: {said}"] if said.startswith("FAULT") else []
                    )
            number += 1
    return found, faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args()
    counted, wrong = campaign(given.seconds, seed=given.seed, rounds=given.rounds)
    print(*wrong[:20], sep="\n")
    totals = {"answers": counted.total(), "disagreements": len(wrong)}
    print(json.dumps({"campaign": "engines", **totals, **dict(sorted(counted.items()))}))
    raise SystemExit(bool(wrong))
