"""Sampled negatives on real tasks: ``python -m benchmarks negatives [--choose | --report | --all] [--tasks=PART]``."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import Row, progress
from benchmarks.real.negatives import MOST_EVENTS, negative_rows, negatives
from benchmarks.real.tasks import Half, catalogue, load
from isolayer.errors import InputError


def run(options: Sequence[str] = ()) -> list[Row]:
    """Median and largest of each figure over the tasks."""
    half, part = parse(options)
    found = {}
    for task in catalogue(half):
        if part in task and load(task).fit.label.mean() <= MOST_EVENTS:
            found[task] = negatives(task)
            progress(f"negatives, {task}: " + ", ".join(f"{name} {value:.3f}" for name, value in found[task].items()))
    return list(negative_rows(found))


def parse(options: Sequence[str]) -> tuple[Half, str]:
    """Half of the tasks, and a part of their names.

    >>> parse(["--report", "--tasks=flights"])
    ('report', 'flights')
    """
    halves: dict[str, Half] = {"choose": "choose", "report": "report", "all": "all"}
    half: Half = "choose"
    part = ""
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        if name in halves:
            half = halves[name]
        elif name == "tasks":
            part = value
        else:
            raise InputError(f"negatives: expected --choose, --report, --all or --tasks=PART, got {option}; choose one")
    return half, part
