"""The last step of training: the curve of the served probability of any model, fitted exactly to the log.

Most models learn no such curve. If it is learned by gradient descent, as in `DualHead`, it lags behind relevance, which
changes until the end of training, and served probabilities would be several percent off.
"""

from __future__ import annotations

import torch
import torch.distributed

from isolayer.debias.served_probability import ServedProbability
from isolayer.fitting.histogram import Histogram
from isolayer.training.parquet_batches import ParquetLogs

_ROWS = 65_536  # rows per call of the backbone


@torch.no_grad()
def refit_served(model: ServedProbability, logs: ParquetLogs, *, rank: int = 0, world: int = 1) -> None:
    """Fit the served curve of every task to all rows of a log, held-out rows included; relevance does not change.

    Args:
        model: Any model with a served curve.
        logs: The log.
        rank: Rank of this process, which reads its share of the rows.
        world: Number of processes; all of them end with the same curves.
    """
    sums: dict[str, Histogram] = {}
    for train in (True, False):
        for group, rows in logs.share(train=train, rank=rank, world=world):
            table = logs.read(group, rows)
            for start in range(0, table.num_rows, _ROWS):
                batch = logs.columns.batch(table.slice(start, _ROWS))
                found = model.served_sums(
                    batch.features.to(model.sign.device), batch.labels, batch.mask or None, batch.weight
                )
                sums = _merged(sums, found)
    if world > 1:
        parts: list[dict[str, Histogram]] = [{} for _ in range(world)]
        torch.distributed.all_gather_object(parts, sums)
        sums = {}
        for part in parts:
            sums = _merged(sums, part)
    model.fit_served(sums)


def _merged(one: dict[str, Histogram], other: dict[str, Histogram]) -> dict[str, Histogram]:
    both = {task: one[task].merge(other[task]) for task in one.keys() & other.keys()}
    return one | other | both
