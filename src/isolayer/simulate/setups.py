"""Named feeds for debiasing benchmarks: loggers under which position bias harms ranking, and loggers where it helps."""

from __future__ import annotations

from typing import Literal

from isolayer.settings import choice, flag
from isolayer.simulate.behaviours import Behaviour, DependentClick, DynamicBayesian, PositionBased, Trust
from isolayer.simulate.feed import Feed, Logger
from isolayer.simulate.population import Population
from isolayer.simulate.session_behaviours import Contextual, Mixture


def debias_feed(
    bias: Literal["position", "trust", "cascade", "dependent", "contextual", "mixture"] = "position",
    logger: Literal["spurious", "informed", "popular"] = "spurious",
    *,
    deterministic: bool = False,
    seed: int = 0,
) -> Feed:
    """One cell of the debiasing benchmark: lists of 10 documents with grades 0 .. 4, clicks only.

    With ``logger="spurious"`` the logger ranks by one of the features that is nearly irrelevant. A model that learns
    from clicks without regard to position learns that feature. With ``logger="informed"`` it ranks by
    ``.7 grade + .35 noise``, and part of the grade is absent from the features, so position itself carries information
    about relevance and the naive model gains from it. With ``logger="popular"`` it ranks by popularity, which is half
    relevance. ``bias`` is the click model: position-based, trust, cascades (``"cascade"``, DBN; ``"dependent"``, DCM),
    examination by device and query length (``"contextual"``), or equal parts of position-based, trust and DBN users
    (``"mixture"``). Lists are drawn by Plackett-Luce; ``deterministic`` sorts
    instead, so that each score has one position only.

    Train on ``feed.log(15_000, seed=...)``; test nDCG@10 against ``grade`` on a log of another seed.

    >>> feed = debias_feed("trust", "spurious", deterministic=True)
    >>> feed.logger.spurious, feed.logger.temperature
    (1.0, 0.0)
    """
    deterministic = flag("deterministic", deterministic)
    behaviours: dict[str, Behaviour] = {
        "position": PositionBased(),
        "trust": Trust(),
        "cascade": DynamicBayesian(),
        "dependent": DependentClick(),
        "contextual": Contextual(),
        "mixture": Mixture((PositionBased(), Trust(), DynamicBayesian())),
    }
    loggers = {
        "spurious": Logger(relevance=0.0, spurious=1.0, temperature=0.0 if deterministic else 0.5),
        "popular": Logger(relevance=0.0, spurious=0.0, popularity=1.0, temperature=0.0 if deterministic else 0.5),
        "informed": Logger(
            relevance=0.0, spurious=0.0, grade=0.7, noise=0.35, temperature=0.0 if deterministic else 0.2
        ),
    }
    choice("bias", bias, list(behaviours))
    choice("logger", logger, list(loggers))
    population = Population(users=15_000, items=150_000, hidden=0.25, seed=seed)
    return Feed(population=population, logger=loggers[logger], behaviour=behaviours[bias], tasks=())
