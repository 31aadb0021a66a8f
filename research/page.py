"""Results for people: one page per experiment and a summary that links to them, generated from the JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from research.claim import HELD, bound, contradiction, counted, figure, outcome_in_words
from research.claims import claims_page
from research.pictures import packed
from research.registry import EXPERIMENTS
from research.tested import TESTED

_HEAD = """# Results

Generated from the JSON files that `python -m research` writes; nothing is typed by hand. Each line is one study. The
terms are those of [What holds and what does not](claims.md), which goes through the paper claim by claim. The page of a
study begins with its parts, those first that speak against the claim most surely, and ends with its design.

Where data are simulated, compare signs and order with the paper's, and not sizes; not all signs agree. Intervals are
then over seeds, and sizes, rates and recipes were chosen on other seeds than those reported. Rules, arms and parts that
were added after a first report are named in the design of the study. Intervals of studies on real data are over
resampled users, queries or rows, and over seeds where something is trained from one; those of real tasks are over
sources.
"""
REPRODUCED = "reproduced"  # the folder of numbers and pictures beside the summary
STUDIES = "studies"  # the folder of pages beside the summary
CLAIMS = "claims.md"  # the page of the paper's claims beside the summary
RUN = "run.json"  # how long a run of everything took
READ_AGAIN = ("best", "by seed")  # series that other studies and claims read: settings that were chosen, single seeds
_FOLDED = 30  # rows from which on a table is folded away


def results_page(out: str | Path = "results") -> str:
    """The whole of ``docs/results.md`` from the files under ``out``: a line per experiment, with a link to its page.

    >>> print(results_page("a folder nobody has").splitlines()[0])
    # Results
    """
    found = [(experiment, _read(Path(out) / f"{experiment.name}.json")) for experiment in EXPERIMENTS]
    documents = [document for _, document in found if document is not None]
    absent = [experiment.name for experiment, document in found if document is None]
    columns = ("study", "data", "outcome", "parts", "what speaks against it most surely")
    lines = [_HEAD, f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for experiment, one in found:
        if one is None:
            continue
        link = f"[{one['title']}]({STUDIES}/{one['name']}.md)"
        counts = counted(one["parts"])
        lines.append(f"| {link} | {experiment.data} | {one['held']} | {counts} | {_against(one['parts'])} |")
    lines += ["", _minutes(documents, _read(Path(out) / RUN))]
    if absent:
        lines += ["", f"Not run: {', '.join(absent)}."]
    return "\n".join(lines) + "\n"


def _minutes(documents: list[dict[str, Any]], run: dict[str, Any] | None) -> str:
    """How long ``python -m research all`` takes, by the sum of its units and in one go, and what it leaves out."""
    apart = {experiment.name for experiment in EXPERIMENTS if experiment.chooses}
    minutes = {one["name"]: one["cpu_seconds"] / 60 for one in documents}
    total = sum(spent for name, spent in minutes.items() if name not in apart)
    said = (
        f"`python -m research all` takes {total:.0f} minutes of one core, half of that on two: units run side by side."
    )
    if run is not None:
        said += f" Run in one go, its {run['units']} units took {run['minutes']:.0f} minutes in {run['processes']} "
        said += "processes"
        said += f"; {run['failed']} of them failed and were run again later." if run["failed"] else "."
    left_out = " and ".join(f"{name} ({minutes[name]:.0f} minutes)" for name in sorted(apart & set(minutes)))
    return said + (f" It leaves out {left_out}, whose chosen settings are committed." if left_out else "")


def study_pages(out: str | Path, *, pictures: str = f"../{REPRODUCED}/") -> dict[str, str]:
    """The page of each experiment whose numbers are under ``out``, by name."""
    found = {experiment.name: _read(Path(out) / f"{experiment.name}.json") for experiment in EXPERIMENTS}
    foot = "\n\n[All results](../results.md)\n"
    return {
        name: table(document, pictures=pictures, heading="#") + foot
        for name, document in found.items()
        if document is not None
    }


def write_page(page: str | Path, out: str | Path = "results") -> None:
    """Bring the results under ``out`` into a folder ``reproduced`` beside the page, and write all pages from there.

    The folder keeps numbers and pictures, not the series that pictures were drawn from, but for settings that other
    studies read. What it has of experiments that are not under ``out`` stays, so one experiment may be brought up to
    date by itself.
    """
    page, out = Path(page), Path(out)
    folder = page.parent / REPRODUCED
    folder.mkdir(parents=True, exist_ok=True)
    for experiment in EXPERIMENTS:
        document = _read(out / f"{experiment.name}.json")
        if document is None:
            continue
        kept = {key: value for key, value in document.items() if key != "series"}
        read_again = {key: document["series"][key] for key in READ_AGAIN if key in document["series"]}
        if read_again:
            kept["series"] = read_again
        (folder / f"{experiment.name}.json").write_text(json.dumps(kept, indent=1) + "\n")
        if document["picture"]:
            (folder / document["picture"]).write_bytes(packed((out / document["picture"]).read_bytes()))
    if (out / RUN).exists():
        (folder / RUN).write_bytes((out / RUN).read_bytes())
    page.write_text(results_page(folder))
    page.with_name(CLAIMS).write_text(claims_page(folder))
    (page.parent / STUDIES).mkdir(exist_ok=True)
    for name, text in study_pages(folder).items():
        (page.parent / STUDIES / f"{name}.md").write_text(text)


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def table(document: dict[str, Any], *, pictures: str = "", heading: str = "##") -> str:
    """One experiment: claim, the paper's figure and ours with its interval, the verdict, the command.

    >>> row = {"name": "Click", "metric": "delta AUC", "paper": "+1.00%", "digits": 2, "unit": "%"}
    >>> row["ours"] = {"value": 0.5, "lower": 0.25, "upper": 0.75, "seeds": 5}
    >>> print(table_row(row))
    | Click | delta AUC | +1.00% | +0.50% [+0.25, +0.75] |
    """
    known = next((one for one in EXPERIMENTS if one.name == document["name"]), None)
    figures = [
        "| setting | measure | paper | ours, with 95% interval |",
        "|---|---|---|---|",
        *(table_row(row) for row in document["rows"]),
        "",
    ]
    lines = [
        f"{heading} {document['title']}",
        "",
        _claimed(document),
        "",
        *([f"**What was tested:** {tested}", ""] if (tested := TESTED.get(document["name"])) else []),
        *([f"**Data:** {known.data}.", ""] if known else []),
        f"**Outcome: {document['held']}** ({counted(document['parts'])}). {document['note']}".rstrip(),
        "",
        *([f"![{document['title']}]({pictures}{document['picture']})", ""] if document["picture"] else []),
        f"{heading}# Parts",
        "",
        "| part | must be | measured, with 95% interval | outcome |",
        "|---|---|---|---|",
        *(_part_row(part) for part in sorted(document["parts"], key=contradiction, reverse=True)),
        "",
        f"{heading}# Figures",
        "",
    ]
    if len(document["rows"]) > _FOLDED:
        figures = _folded(f"All {len(document['rows'])} figures", figures)
    design = _folded("Design, as the source states it", [known.design, ""]) if known else []
    return "\n".join([*lines, *figures, *design, _source(document)])


def _folded(summary: str, lines: list[str]) -> list[str]:
    return ['<details markdown="1">', f"<summary>{summary}</summary>", "", *lines, "</details>", ""]


def _claimed(document: dict[str, Any]) -> str:
    """What is claimed and by whom: a study of what the paper does not have says so."""
    by = "We say" if document["paper"].startswith("none") else "The paper"
    return f"**{by}:** {document['claim']} ({document['paper']})"


def _against(parts: list[dict[str, Any]]) -> str:
    """The part that speaks against the claim most surely, with its figure; nothing where all held."""
    worst = max(parts, key=contradiction)
    return "" if worst["held"] == HELD else f"{_cell(worst['says'])}: {figure(worst)}, must be {bound(worst)}"


def _part_row(part: dict[str, Any]) -> str:
    outcome = outcome_in_words(part)
    shown = outcome if outcome == HELD else f"**{outcome}**"
    return f"| {_cell(part['says'])} | {bound(part)} | {figure(part)} | {shown} |"


def _source(document: dict[str, Any]) -> str:
    seeds = document["seeds"]
    named = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    return f"`{document['command']}`: {named}, {document['cpu_seconds']:.0f} s of one core."


def table_row(row: dict[str, Any]) -> str:
    """One line of the table; changes in percent carry their sign."""
    ours, sign = row["ours"], "+" if row["unit"] == "%" else ""

    def shown(value: float) -> str:
        return f"{value:{sign}.{row['digits']}f}"

    interval = f" [{shown(ours['lower'])}, {shown(ours['upper'])}]" if ours["lower"] < ours["upper"] else ""
    named = " | ".join(_cell(row[key]) for key in ("name", "metric", "paper"))
    return f"| {named} | {shown(ours['value'])}{row['unit']}{interval} |"


def _cell(text: str) -> str:
    """A text inside a table, where a bar would begin the next cell."""
    return text.replace("|", "\\|")
