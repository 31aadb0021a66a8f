"""The application: one typer app, its commands in the order of a user's work."""

from __future__ import annotations

import typer

from isolayer.cli.calibration import apply, fit, update
from isolayer.cli.debiasing import demo, diagnose, simulate, train
from isolayer.cli.document import recorded
from isolayer.cli.exporting import export
from isolayer.cli.scoring import score
from isolayer.cli.showing import show
from isolayer.cli.verdicts import check, compare, report

app = typer.Typer(
    name="isolayer",
    help="""Calibrate and debias the scores of ranking systems.

    `isolayer demo` shows everything at work. A log with scores: fit a calibrator, look at it by report, use it by apply
    or export, watch it by check, add days by update, see what it remembers by show. A log without scores: train a
    ranker, then score the log. No log: simulate one.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
    *(demo, simulate, diagnose, train, score),
    *(fit, report, apply, export, check, update, compare, show),
)
for _command in COMMANDS:
    app.command()(recorded(_command))
