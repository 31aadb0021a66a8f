"""KuaiRand (CC BY-SA 4.0, not fetched: see :mod:`research.datasets`): eight labels by tab, and by tab and activity.

One network for all labels, blind to the tab, learns on 25 to 27 April; calibrators are fitted on 28 to 30 April and
judged on May, a split in time. Intervals resample users. The rarest labels have a few dozen events to fit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch

from benchmarks.real.tasks import Source, scored
from research.data import kuairand_path
from research.datasets import kuairand
from research.kuairand_calibration import FITTED_FROM, TESTED_FROM, features
from research.kuairand_tasks import TASKS, task_logits

SOURCES = tuple(Source(f"kuairand {label}", (("tab",), ("tab", "activity"))) for label in TASKS)


def build() -> Iterator[tuple[str, pd.DataFrame]]:
    """Each label's scored rows."""
    torch.manual_seed(0)
    columns = kuairand(kuairand_path())
    day = columns["date"]
    label = np.stack([columns[task] for task in TASKS], axis=1).astype(np.int64)
    logit = task_logits(features(columns), label, day < FITTED_FROM, seed=0, epochs=8)
    segments = {"tab": columns["tab"], "activity": columns["user_active_degree"].astype(str)}
    fit, test = (day >= FITTED_FROM) & (day < TESTED_FROM), day >= TESTED_FROM
    for i, source in enumerate(SOURCES):
        yield source.name, scored(logit[:, i], label[:, i], segments, columns["user_id"], fit=fit, test=test)
