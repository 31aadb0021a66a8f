"""The application: one typer app, its commands in the order of a user's work."""

from __future__ import annotations

from typing import Annotated

import typer

from isolayer.cli.auditing import audit
from isolayer.cli.calibration import apply, fit, update
from isolayer.cli.debiasing import demo, simulate, train
from isolayer.cli.diagnosing import diagnose
from isolayer.cli.document import recorded
from isolayer.cli.example import example
from isolayer.cli.exporting import export
from isolayer.cli.merging import merge
from isolayer.cli.scoring import score
from isolayer.cli.showing import show
from isolayer.cli.tuning import tune
from isolayer.cli.verdicts import check, compare, report

app = typer.Typer(
    name="isolayer",
    help="""Calibrate and debias the scores of ranking systems.

    `isolayer example` writes a log to try the commands on. For a log with scores: `audit` finds where they are wrong,
    `fit` fits a calibrator, `report` shows it, `apply` and `export` use it, `check` monitors it, `update` adds days,
    and `show` prints what it remembers. For a log without scores: `train` trains a ranker, then `score` adds its
    probabilities. `isolayer demo` shows everything at work; `isolayer simulate` makes larger logs.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
    *(example, demo, simulate, diagnose, train, tune, score),
    *(audit, fit, report, apply, export, check, update, merge, compare, show),
)
for _command in COMMANDS:
    app.command()(recorded(_command))


def _print_version(asked: bool) -> None:
    if asked:
        from isolayer.curves.verified_file import library_version

        print(f"isolayer {library_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
