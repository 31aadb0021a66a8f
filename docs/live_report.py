"""For the site: a live report page of the example log, written beside the built pages."""

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from isolayer import IsotonicCalibrator
from isolayer.report import write
from isolayer.simulate import scored_log


def write_report(path: Path) -> None:
    """The report of the example log: fitted on half of the users, shown on the others."""
    log = scored_log(120_000, 14)
    fitted = log["user"] % 2 == 0
    calibrator = IsotonicCalibrator(("surface", "device"), scale="prob")
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.parquet"
        pq.write_table(pa.table({name: column[fitted] for name, column in log.items()}), rows)
        calibrator.fit_table(rows, score="prob", label="click")
    held_out = {name: column[~fitted] for name, column in log.items() if name != "user"}
    title = "A feed, on users that were left out"
    write(path, held_out, calibrator.curves_, score="prob", label="click", date="day", title=title)


def on_post_build(config: Any, **_: Any) -> None:
    """What MkDocs calls when the pages are written."""
    write_report(Path(config["site_dir"]) / "report.html")
