"""Results for people: the table of one experiment and the page of all, generated from the JSON files, never typed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from isolayer.experiments.registry import EXPERIMENTS

_HEAD = """# Results

Generated from the JSON files that `isolayer reproduce` writes; nothing is typed by hand. A part of a claim **held**
when its whole 95% interval over seeds is on the side the paper says, **held in direction** when only the mean is, and
**did not hold** otherwise; a claim is as good as the worst of its parts. The data are simulated unless a study says
otherwise, so figures agree with the paper's in sign and order rather than in size.
"""


def results_page(out: str | Path = "results", *, pictures: str = "") -> str:
    """The whole of ``docs/results.md`` from the files under ``out``: a summary of all experiments, then each in turn.

    ``pictures`` is where the page finds them, such as ``"pictures/"``.

    >>> print(results_page("a folder nobody has").splitlines()[0])
    # Results
    """
    found = {experiment.name: _read(Path(out) / f"{experiment.name}.json") for experiment in EXPERIMENTS}
    documents = [document for document in found.values() if document is not None]
    absent = [name for name, document in found.items() if document is None]
    lines = [_HEAD, "| experiment | outcome | seeds | CPU seconds |", "|---|---|---|---|"]
    lines += [
        f"| [{one['title']}](#{one['name']}) | {one['held']} | {len(one['seeds'])} | {one['cpu_seconds']:.0f} |"
        for one in documents
    ]
    if absent:
        lines += ["", f"Not run: {', '.join(absent)}."]
    return "\n".join([*lines, *(f"\n{_section(one, pictures)}" for one in documents)]) + "\n"


def write_page(page: str | Path, out: str | Path = "results") -> None:
    """Write the page of all results, and copy their pictures into a folder ``pictures`` beside it."""
    page, out = Path(page), Path(out)
    folder = page.parent / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    for picture in sorted(out.glob("*.png")):
        shutil.copyfile(picture, folder / picture.name)
    page.write_text(results_page(out, pictures="pictures/"))


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def _section(document: dict[str, Any], pictures: str) -> str:
    return f'<a id="{document["name"]}"></a>\n\n{table(document, pictures=pictures)}'


def table(document: dict[str, Any], *, pictures: str = "") -> str:
    """One experiment: claim, the paper's figure and ours with its interval, the verdict, the command.

    >>> row = {"name": "Click", "metric": "delta AUC", "paper": "+1.00%", "digits": 2, "unit": "%"}
    >>> row["ours"] = {"value": 0.5, "lower": 0.25, "upper": 0.75, "seeds": 5}
    >>> print(table_row(row))
    | Click | delta AUC | +1.00% | +0.50% [+0.25, +0.75] |
    """
    seeds = f"{len(document['seeds'])} seed{'s' * (len(document['seeds']) != 1)}"
    lines = [
        f"## {document['title']}",
        "",
        f"**The paper:** {document['claim']} ({document['paper']})",
        "",
        f"**Outcome: {document['held']}.** {document['verdict']}",
        "",
        "| | | paper | ours, with 95% interval |",
        "|---|---|---|---|",
        *(table_row(row) for row in document["rows"]),
        "",
    ]
    if document["picture"]:
        lines += [f"![{document['title']}]({pictures}{document['picture']})", ""]
    return "\n".join([*lines, f"`{document['command']}`: {seeds}, {document['cpu_seconds']:.0f} s of one core."])


def table_row(row: dict[str, Any]) -> str:
    """One line of the table; changes in percent carry their sign."""
    ours, sign = row["ours"], "+" if row["unit"] == "%" else ""

    def shown(value: float) -> str:
        return f"{value:{sign}.{row['digits']}f}"

    interval = f" [{shown(ours['lower'])}, {shown(ours['upper'])}]" if ours["lower"] < ours["upper"] else ""
    return f"| {row['name']} | {row['metric']} | {row['paper']} | {shown(ours['value'])}{row['unit']}{interval} |"
