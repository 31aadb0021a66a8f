"""``python -m research``: run the studies, or list them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from isolayer.cli.output import note, progress_bar, show_table
from isolayer.errors import InputError
from research import page as results_page
from research import registry, runner

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Studies by name, or all; without a name, they are listed.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List all studies.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Two seeds and small sizes.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the public data sets; by default $ISOLAYER_DATA, or else data.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for numbers and pictures.")] = Path("results"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard what an earlier run finished.")] = False,
    processes: Annotated[int, typer.Option(help="Number of processes.")] = 2,
    page: Annotated[Path | None, typer.Option(help="Also write all results as one Markdown page.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Reproduce the paper's tables, figures and studies on real data.

    Each study writes its numbers, a picture or table, and a sentence that says whether the paper's claim held. An
    interrupted run continues where it stopped. "all" leaves out debias-tuning and tree-tuning, whose settings are
    committed and read by other studies; each is run by its own name.

    Example: python -m research offline-debiasing --quick
    """
    if list_ or not names:
        known = registry.EXPERIMENTS
        show_table({"name": [e.name for e in known], "what": [e.title for e in known]}, as_json=json)
        return
    if data is not None:
        os.environ["ISOLAYER_DATA"] = str(data.resolve())  # so that worker processes see it too
    try:
        with progress_bar("reproduce") as advance:
            documents = runner.reproduce(
                names,
                quick=quick,
                seeds=seeds,
                out=out,
                progress=lambda now: advance(now.done, now.total, _doing(now), now.seconds_left),
                processes=processes,
                fresh=fresh,
            )
    except KeyboardInterrupt:
        note(f"interrupted: finished units are kept in {out}; run the same command again to continue")
        raise typer.Exit(130) from None
    except InputError as error:
        note(f"research: {error}")
        raise typer.Exit(2) from None
    except runner.UnitsFailed as error:
        typer.echo(f"research: {error}", err=True)  # tracebacks of several lines, which `note` would put in one
        raise typer.Exit(1) from None
    columns = {"experiment": list(documents)}
    columns |= {key: [one[key] for one in documents.values()] for key in ("held", "verdict")}
    show_table(columns, as_json=json)
    if page is not None:
        results_page.write_page(page, out / "quick" if quick else out)
        note(f"written: {page}")


def _doing(now: runner.Progress) -> str:
    """The study that has just finished a unit, and how many units have failed, which need not wait for the end.

    >>> _doing(runner.Progress("downstream", 3, 9, 60.0)), _doing(runner.Progress("downstream", 3, 9, 60.0, failed=2))
    ('downstream', 'downstream (2 failed)')
    """
    return f"{now.experiment} ({now.failed} failed)" if now.failed else now.experiment


if __name__ == "__main__":
    app()
