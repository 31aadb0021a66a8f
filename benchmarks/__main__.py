"""Run benchmarks by name, or all: ``python -m benchmarks [names...]``; writes results/bench.json.

Options after the name of a single benchmark are handed to it: ``python -m benchmarks real --report``.

``python -m benchmarks --readme`` writes the last results into the README. A run ends with 1 if a target was missed.
``ISOLAYER_BENCH_QUICK=1`` runs smaller tasks, whose targets need not hold.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import Row, between_marks, plain_table, progress, quick

RESULTS = Path("results/bench.json")
WITH_OPTIONS = ("audit", "coverage", "fields", "monitor", "negatives", "real")
README_ROWS = {  # what the README shows of each benchmark, in words for a stranger
    "layer": {
        "forward, 501 buckets": "the layer, forward, 501 buckets as in the paper's section 3.2, is faster than its "
        "listing by",
        "forward + backward, 501 buckets": "the layer, forward and backward, 501 buckets, is faster by",
        "peak extra memory, forward + backward, 501 buckets": "memory of the layer, as a share of the listing's",
    },
    "calibration": {
        "scikit-learn isotonic, per segment": "1M rows, 1,000 segments, log loss above the best possible: scikit-learn "
        "isotonic per segment",
        "Platt, per segment": "the same: Platt per segment",
        "MCGrad 0.1.5, defaults": "the same: MCGrad",
        "ours: log loss above oracle": "the same: isolayer",
        "fit, automatic shrinkage, against scikit-learn's loop": "the same: isolayer, fit against a plain "
        "loop of scikit-learn's isotonic regression",
        "score inversions inside a segment": "the same: isolayer, scores put out of order",
    },
    "tables": {
        "fit_table, 20M rows, 10,000 contexts": "fit 20M rows of Parquet, against DuckDB's bare GROUP BY",
        "onnxruntime, 1 row, p50": "one row in onnxruntime",
    },
}


def names_of(package: str = "benchmarks") -> list[str]:
    """Every module or package in the package with a ``run``, found by its text: only those asked for are imported."""
    folder = Path(str(import_module(package).__file__)).parent
    modules = {path.stem: path for path in folder.glob("[!_]*.py")}
    modules |= {path.parent.name: path for path in folder.glob("[!_]*/__init__.py")}
    return sorted(name for name, path in modules.items() if "\ndef run(" in path.read_text())


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())),
        "quick": quick(),
    }


def _kept(names: set[str]) -> dict[str, list[Row]]:
    """Rows of the last run of the benchmarks that are not run now."""
    if not RESULTS.exists():
        return {}
    last = json.loads(RESULTS.read_text())["rows"]
    return {name: [Row(**row) for row in rows] for name, rows in last.items() if name in names}


def save(rows: dict[str, list[Row]], path: Path = RESULTS) -> None:
    """Write the rows as JSON, in one step: an interrupted run leaves the old file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    text = {"machine": machine(), "rows": {name: [asdict(row) for row in some] for name, some in rows.items()}}
    part.write_text(json.dumps(text, indent=2) + "\n")
    part.replace(path)


def readme_table(results: dict[str, Any]) -> str:
    """The figures worth a first look, as Markdown.

    >>> row = {"name": "onnxruntime, 1 row, p50", "target": "", "measured": "14 us", "ok": None}
    >>> readme_table({"machine": {"cores": 2}, "rows": {"tables": [row]}}).splitlines()[2]
    '| one row in onnxruntime | 14 us |'
    """
    lines = ["| measured on " + f"{results['machine']['cores']} cores | |", "|---|---|"]
    for name, shown in README_ROWS.items():
        found = {row["name"]: in_words(row["measured"]) for row in results["rows"].get(name, [])}
        lines += [f"| {words} | {found[row]} |" for row, words in shown.items() if row in found]
    return "\n".join([*lines, "", "All of them, with their targets: `make bench`."])


def in_words(measured: str) -> str:
    """A figure as a stranger reads it: small numbers written out, symbols as words.

    >>> in_words("14.04e-4 above oracle, |O/E-1| 0.0774, fit and predict 220.6 s")
    '0.0014 (error of observed over expected 0.077; 220.6 s)'
    >>> in_words("9.90e-4")
    '0.0010'
    """
    measured = re.sub(r"(\d+\.\d+)e-4", lambda found: f"{float(found[1]) / 1e4:.4f}", measured)
    found = re.fullmatch(r"(\S+) above oracle, \|O/E-1\| (\S+), fit and predict (.*)", measured)
    if found:
        measured = f"{found[1]} (error of observed over expected {float(found[2]):.3f}; {found[3]})"
    return measured.replace("|", "\\|")


def write_readme(readme: Path = Path("README.md"), results: Path = RESULTS) -> None:
    """Put the table of the last run between the README's markers."""
    between_marks(readme, "python -m benchmarks --readme", [readme_table(json.loads(results.read_text()))])


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; 1 when a target was missed, 2 when a name is unknown."""
    if names == ["--readme"]:
        write_readme()
        return 0
    names, options = [n for n in names if not n.startswith("--")], [n for n in names if n.startswith("--")]
    known = names_of()
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"benchmarks: expected names among {', '.join(known)}, got {', '.join(unknown)}", file=sys.stderr)
        return 2
    if options and (len(names) != 1 or names[0] not in WITH_OPTIONS):
        print(
            f"benchmarks: expected options only after one of {', '.join(WITH_OPTIONS)}, got {' '.join(options)}",
            file=sys.stderr,
        )
        return 2
    rows: dict[str, list[Row]] = _kept(set(known) - set(names or known))
    for name in names or known:
        progress(f"{name}: starts")
        run = import_module(f"benchmarks.{name}").run
        rows[name] = run(options) if options else run()
        print(f"\n{name}\n{plain_table(rows[name])}", flush=True)
        save(rows)
    missed = sum(row.ok is False for name in names or known for row in rows[name])
    print(f"\n{missed} missed; threads {machine()['threads']}; written to {RESULTS}")
    return 1 if missed and not quick() else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
