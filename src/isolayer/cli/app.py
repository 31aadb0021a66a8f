"""The application: one typer app, its commands in the order of a user's work."""

from __future__ import annotations

import typer

from isolayer.cli.calibration import apply, check, compare, export, fit, report, update
from isolayer.cli.debiasing import diagnose, simulate, train
from isolayer.cli.studies import bench, demo, reproduce

app = typer.Typer(
    name="isolayer",
    help="Calibrate and debias the scores of ranking systems.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
    *(demo, simulate, fit, apply, update, check, compare, export, report),
    *(diagnose, train, reproduce, bench),
)
for _command in COMMANDS:
    app.command()(_command)
