"""Named feeds for benchmarks of debiasing: the loggers under which bias harms, and those under which it helps."""

from __future__ import annotations

from typing import Literal

from isolayer.errors import InputError
from isolayer.simulate.behaviours import Behaviour, PositionBased, Trust
from isolayer.simulate.feed import Feed, Logger
from isolayer.simulate.population import Population


def debias_feed(
    bias: Literal["position", "trust"] = "position",
    logger: Literal["spurious", "informed"] = "spurious",
    *,
    deterministic: bool = False,
    seed: int = 0,
) -> Feed:
    """One cell of the debiasing benchmark: lists of 10 documents with grades 0 .. 4, clicks only.

    ``logger="spurious"``: it ranks by a feature that is in the features and nearly irrelevant. Whoever learns from the
    clicks without regard to position learns that feature. ``logger="informed"``: it ranks by ``.7 grade + .35 noise``,
    where part of the grade is absent from the features, so position itself tells of relevance and the naive model gains
    by it. Lists are drawn by Plackett-Luce; ``deterministic`` sorts instead, and each score has one position only.

    Train on ``feed.log(15_000, seed=...)``; test nDCG@10 against ``grade`` on a log of another seed.

    >>> feed = debias_feed("trust", "spurious", deterministic=True)
    >>> feed.logger.spurious, feed.logger.temperature
    (1.0, 0.0)
    """
    behaviours: dict[str, Behaviour] = {"position": PositionBased(), "trust": Trust()}
    loggers = {
        "spurious": Logger(relevance=0.0, spurious=1.0, temperature=0.0 if deterministic else 0.5),
        "informed": Logger(
            relevance=0.0, spurious=0.0, grade=0.7, noise=0.35, temperature=0.0 if deterministic else 0.2
        ),
    }
    if bias not in behaviours:
        raise InputError(f"bias: expected 'position' or 'trust', got {bias!r}; choose one")
    if logger not in loggers:
        raise InputError(f"logger: expected 'spurious' or 'informed', got {logger!r}; choose one")
    population = Population(users=15_000, items=150_000, hidden=0.25, seed=seed)
    return Feed(population=population, logger=loggers[logger], behaviour=behaviours[bias], tasks=())
