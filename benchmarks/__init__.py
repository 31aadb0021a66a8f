"""Every figure the project claims, measured: modules with ``run() -> list[Row]``, run by ``python -m benchmarks``.

A module prints a progress line to stderr by :func:`progress`, states its threads, and runs alone.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_START = time.perf_counter()


@dataclass(frozen=True)
class Row:
    """One claim: what it is, the target in words, what was measured, and whether it holds (None: shown only)."""

    name: str
    target: str
    measured: str
    ok: bool | None = None


def quick() -> bool:
    """Whether a smaller task was asked for: ``ISOLAYER_BENCH_QUICK=1``."""
    return os.environ.get("ISOLAYER_BENCH_QUICK", "0") not in ("", "0")


def progress(text: str) -> None:
    """Say on stderr what is under way, with the seconds since the start."""
    print(f"[{time.perf_counter() - _START:6.1f} s] {text}", file=sys.stderr, flush=True)


def best_time(call: Callable[[], object], *, times: int = 3) -> float:
    """Seconds of the quickest of several calls."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def peak_gigabytes() -> float:
    """The most memory that this process has had, of Linux's own account of it.

    Not that of ``getrusage``, in which a process begins with the peak of the one that started it.

    >>> 0 < peak_gigabytes() < 1000
    True
    """
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return float(line.split()[1]) * 1024 / 1e9


def between_marks(page: Path, command: str, lines: Sequence[str]) -> None:
    """Put lines into a page, between the marks of the command that writes them."""
    text, opening = page.read_text(), f"<!-- figures: written by `{command}` -->\n"
    before, mark, rest = text.partition(opening)
    _, closing, after = rest.partition("<!-- /figures -->")
    if not (mark and closing):
        raise ValueError(f"{page}: expected {opening.strip()} and <!-- /figures -->, got neither; put them there")
    page.write_text("\n".join([before + mark.strip(), *lines, closing + after]))


def plain_table(rows: list[Row]) -> str:
    """Rows as text: ``name | target | measured | ok or miss``.

    >>> print(plain_table([Row("fit", "<= 2 s", "1.2 s", True)]))
    name | target | measured |
    fit  | <= 2 s | 1.2 s    | ok
    """
    verdict = {True: "ok", False: "miss", None: ""}
    lines = [("name", "target", "measured", ""), *((r.name, r.target, r.measured, verdict[r.ok]) for r in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    return "\n".join(
        " | ".join([*(cell.ljust(width) for cell, width in zip(line[:3], widths, strict=True)), line[3]]).rstrip()
        for line in lines
    )
