"""The table of extras with their sizes: ``python docs/extras.py`` writes it into docs/install.md.

Sizes are those of the files that are installed in this environment, dependencies included.
"""

import tomllib
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- extras: written by `python docs/extras.py` -->", "<!-- /extras -->"
PURPOSE = {
    "": "fit, predict, save, write SQL, measure: Python on pandas, polars, pyarrow and numpy",
    "cli": "the `isolayer` command, with the report page and the embedded DuckDB; most people want this",
    "data": "fit and apply inside a database through Ibis and the embedded DuckDB",
    "report": "charts in notebooks and the report page",
    "onnx": "export to ONNX and check it with ONNX Runtime",
    "torch": "the layers, and curves as layers",
    "boosting": "rankers of LightGBM and XGBoost trained through frozen bias curves",
    "integrations": "calibrators in MLflow and figures for Prometheus",
    "train": "`isolayer train`, `score` and `demo`: rankers trained on logs",
    "all": "everything above but integrations",
}


def closure(requirements):
    """Names of the installed distributions that requirements ask for, with what those ask for in turn."""
    found, waiting = set(), [(Requirement(one), "") for one in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        key = (requirement.name.lower().replace("_", "-"), tuple(sorted(requirement.extras)))
        if key in found:
            continue
        try:
            needs = Distribution.from_name(requirement.name).requires or []
        except PackageNotFoundError:
            continue
        found.add(key)
        waiting += [(Requirement(one), inner) for one in needs for inner in ("", *requirement.extras)]
    return {name for name, _ in found}


def megabytes(names):
    """The size of installed distributions."""
    files = (Path(file.locate()) for name in names for file in Distribution.from_name(name).files or [])
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def table():
    """The rows of the table."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras, core = project["optional-dependencies"], project["dependencies"]
    rows = ["| install | adds | size, with dependencies |", "|---|---|---|"]
    for extra, purpose in PURPOSE.items():
        inner = list(core)
        waiting = list(extras[extra]) if extra else []
        while waiting:
            one = Requirement(waiting.pop())
            if one.name == "isolayer":
                waiting += [need for name in one.extras for need in extras[name]]
            else:
                inner.append(str(one))
        size = megabytes(closure(inner))
        shown = f"{size / 1000:.1f} GB" if size >= 1000 else f"{round(size, -1):.0f} MB"
        rows.append(f"| `{'.' if not extra else f'.[{extra}]'}` | {purpose} | {shown} |")
    return "\n".join(rows)


def write(page=ROOT / "docs" / "install.md"):
    """Put the table into the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")


if __name__ == "__main__":
    write()
