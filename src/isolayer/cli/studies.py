"""Commands that show and measure: the demonstration, the paper's tables and figures, the benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from isolayer.cli.output import note, progress_bar, show_table
from isolayer.errors import InputError, need


def demo(
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("demo"),
    quick: Annotated[bool, typer.Option("--quick", help="A smaller log.")] = False,
) -> None:
    """See everything work in minutes. Simulates a feed, debiases a ranker, calibrates it, exports it, reports it.

    Example: isolayer demo
    """
    need("isolayer.demo", "all").run(out, quick=quick)


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Experiments, or all; without any, they are listed.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Name them all.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Two seeds and small sizes.")] = False,
    seeds: Annotated[int | None, typer.Option(help="How many seeds.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for numbers and pictures.")] = Path("results"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier run finished.")] = False,
    processes: Annotated[int, typer.Option(help="How many processes work at once.")] = 2,
    page: Annotated[Path | None, typer.Option(help="Also write all results as one Markdown page.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Reproduce the paper's tables, figures and studies on real data.

    Each experiment writes its numbers, a picture or table, and a sentence that says whether the paper's claim held.
    What was interrupted goes on where it stopped.

    Example: isolayer reproduce offline-debiasing --quick
    """
    registry, runner = need("isolayer.experiments.registry", "all"), need("isolayer.experiments.runner", "all")
    if list_ or not names:
        known = registry.EXPERIMENTS
        show_table({"name": [e.name for e in known], "what": [e.title for e in known]}, as_json=json)
        return
    try:
        with progress_bar("reproduce") as advance:
            documents = runner.reproduce(
                names,
                quick=quick,
                seeds=seeds,
                out=out,
                progress=lambda now: advance(now.done, now.total, now.experiment, now.seconds_left),
                processes=processes,
                fresh=fresh,
            )
    except KeyboardInterrupt:
        note(f"interrupted: what was finished is kept in {out}; the same command goes on from there")
        raise typer.Exit(130) from None
    columns = {"experiment": list(documents)}
    columns |= {key: [one[key] for one in documents.values()] for key in ("held", "verdict")}
    show_table(columns, as_json=json)
    if page is not None:
        need("isolayer.experiments.page", "all").write_page(page, out / "quick" if quick else out)
        note(f"written: {page}")


def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks, or all.")] = None,
) -> None:
    """Measure every figure the project claims. Needs a source checkout. Ends with code 1 if one was missed.

    Example: isolayer bench layer
    """
    sys.path.insert(0, str(Path.cwd()))
    if not Path("benchmarks/__main__.py").exists():
        raise InputError("bench: expected the folder benchmarks here, got none; run it in a checkout of the source")
    raise typer.Exit(need("benchmarks.__main__", "dev").main(list(names or [])))
