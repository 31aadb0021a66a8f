"""The figures of a check as a text file for Prometheus, as its node exporter collects them from a folder."""

from __future__ import annotations

import time
from pathlib import Path

from isolayer.cli.judgement import Judgement
from isolayer.storage import whole_file

# The figures of `check`, and the help text of each metric.
_METRICS = {
    "rows": "Rows of the log that was checked.",
    "o_over_e": "Observed over expected events; above 1 the calibrator predicts too little.",
    "o_over_e_from": "Lower end of the interval of observed over expected.",
    "o_over_e_to": "Upper end of the interval of observed over expected.",
    "slope": "Slope of the labels over the predictions; below 1 predictions are too extreme.",
    "log_loss_before": "Log loss of the raw scores.",
    "log_loss_after": "Log loss of the calibrated scores.",
    "contexts": "Contexts that were judged.",
    "drifted_contexts": "Contexts that drifted.",
    "new_contexts": "Contexts that the calibrator was not fitted on.",
}


def write_metrics(judgement: Judgement, curves: Path, out: Path) -> None:
    """Write the figures of a check in one step, so that no collector reads an incomplete file.

    Args:
        judgement: The verdict.
        curves: The calibrator, the label of all metrics.
        out: The file, whose name must end in ``.prom`` for the node exporter.
    """
    label = str(curves).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    values = {name: judgement.figures.get(name) for name in _METRICS}
    told = {
        **_METRICS,
        "holds": "1 if the calibrator holds, 0 if it drifted.",
        "time": "When it was checked, Unix time.",
    }
    lines = list[str]()
    for name, value in {**values, "holds": float(judgement.holds), "time": time.time()}.items():
        number = float("nan") if value is None else float(value)
        metric = f"isolayer_check_{name}"
        lines += [f"# HELP {metric} {told[name]}", f"# TYPE {metric} gauge"]
        lines.append(f'{metric}{{curves="{label}"}} {"NaN" if number != number else repr(number)}')
    with whole_file(out) as part:
        part.write_text("\n".join(lines) + "\n")
