"""The command that writes a small log to try the other commands on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from numpy.typing import NDArray

from isolayer.cli.columns import next_step
from isolayer.cli.files import check_output
from isolayer.cli.logs import Json
from isolayer.cli.output import show
from isolayer.cli.rows import check_format, write
from isolayer.errors import InputError, need


def example(
    out: Annotated[
        Path, typer.Option(help="Where to write the log: a name ending in .csv, .csv.gz, .parquet or .ndjson.")
    ] = Path("log.csv"),
    tomorrow: Annotated[
        Path, typer.Option(help="Where to write the rows of the next day, which have no clicks yet.")
    ] = Path("tomorrow.csv"),
    rows: Annotated[int, typer.Option(min=150, max=10_000_000, help="Approximate number of rows.")] = 40_000,
    days: Annotated[int, typer.Option(min=1, max=365, help="Number of days.")] = 14,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    json: Json = False,
) -> None:
    """Write a small log of scores and clicks to try the other commands on, and the rows of the day after it.

    Each row is an impression: day, user, surface, device, the click probability that a model predicted, and the click.
    Over all rows the model is calibrated; on every surface it is wrong. The second file has the next day, without
    clicks, as a log has it when scores are needed.

    Example: isolayer example
    """
    for option, path in (("--out", out), ("--tomorrow", tomorrow)):
        check_output(path, option)
        check_format(path)
    if out.resolve() == tomorrow.resolve():
        raise InputError(f"--tomorrow: expected another file than --out, got {str(out)!r} for both; rename one")
    log = need("isolayer.simulate").scored_log(rows + rows // days, days + 1, seed=seed)
    past = log["day"] < log["day"][-1]
    _write({name: values[past] for name, values in log.items()}, out)
    _write({name: values[~past] for name, values in log.items() if name != "click"}, tomorrow)
    figures = {"rows": int(past.sum()), "days": days, "click_rate": float(log["click"][past].mean())}
    show({**figures, "written": out, "next_day_written": tomorrow}, as_json=json)
    next_step("fit", out, "--contexts", "surface", "--holdout", "0.2", "--date", "day", "--out", "curves.parquet")


def _write(columns: dict[str, NDArray[Any]], out: Path) -> None:
    """Write columns as a file of the format that its name says."""
    ibis = need("ibis")
    import pyarrow as pa

    write(ibis.memtable(pa.table(columns)), out)
