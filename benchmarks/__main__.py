"""Run benchmarks by name, or all: ``python -m benchmarks [names...]``; writes results/bench.json.

Ends with 1 if a target was missed. ``ISOLAYER_BENCH_QUICK=1`` runs smaller tasks, whose targets need not hold.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benchmarks import Row, plain_table, progress, quick

RESULTS = Path("results/bench.json")


def names_of(package: str = "benchmarks") -> list[str]:
    """Every module of the package with a ``run``, told by its text so that only those asked for are imported."""
    folder = Path(str(import_module(package).__file__)).parent
    return sorted(path.stem for path in folder.glob("[!_]*.py") if "\ndef run(" in path.read_text())


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())),
        "quick": quick(),
    }


def save(rows: dict[str, list[Row]], path: Path = RESULTS) -> None:
    """Write the rows as JSON, in one step: an interrupted run leaves the old file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    text = {"machine": machine(), "rows": {name: [asdict(row) for row in some] for name, some in rows.items()}}
    part.write_text(json.dumps(text, indent=2) + "\n")
    part.replace(path)


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; 1 when a target was missed, 2 when a name is unknown."""
    known = names_of()
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"benchmarks: expected names among {', '.join(known)}, got {', '.join(unknown)}", file=sys.stderr)
        return 2
    rows: dict[str, list[Row]] = {}
    for name in names or known:
        progress(f"{name}: starts")
        rows[name] = import_module(f"benchmarks.{name}").run()
        print(f"\n{name}\n{plain_table(rows[name])}", flush=True)
        save(rows)
    missed = sum(row.ok is False for some in rows.values() for row in some)
    print(f"\n{missed} missed; threads {machine()['threads']}; written to {RESULTS}")
    return 1 if missed and not quick() else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
