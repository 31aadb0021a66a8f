"""Section 5.2: the weights of the two heads. Where is ranking best, where is calibration, and when do they conflict?

The design, stated before any run. A map of two figures, ranking and calibration, over three things a practitioner sets
or is given:

    beta      the weight of the isotonic head from 0 to 1, alpha being the rest
    anchor    ``joint``, as the paper trains it: the inference loss trains relevance too; or ``detached``: it trains one
              monotone curve over relevance, which cannot change the order, and nothing else
    overlap   how much the logging policy varies: ``high`` (lists drawn at temperature .5), ``some`` (.3) or ``low``
              (.1), where items are nearly always shown at the same position, so that position and relevance are hard
              to tell apart

For each combination several models are trained on logs of their own, as a pipeline that retrains does, and judged
together on one more log:

    ndcg      of the inference head against true relevance: ranking
    ece, ne   of the served probability on logged rows: calibration
    spread    standard deviation over retrainings of its mean, in percent of the label mean: stability
    wobble    standard deviation over retrainings of an item's logit, averaged over items: stability of each score

The paper's claim, that beta from .7 to .8 is best, is judged with the joint anchor and some overlap, the world of table
3; whether it is so elsewhere is read off the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import torch

from isolayer import metrics
from isolayer.debias.heads import DualHead
from isolayer.errors import need
from isolayer.simulate import Feed, Logger, Population, PositionBased
from research.loop import WIDTH, as_log, network, train
from research.offline_debiasing import CONTEXTS
from research.result import Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of

CLAIM = (
    "A weight of the isotonic head between 0.7 and 0.8 debiases best, and some weight on the inference head is needed "
    "to keep served scores calibrated and steady."
)
PAPER = "section 5.2: 0.7 <= beta <= 0.8, alpha not zero"
SEEDS = 4
OVERLAPS = {"high": 0.5, "some": 0.3, "low": 0.1}  # temperature of the logger
ANCHORS = ("joint", "detached")
BETAS = {  # finer where the claim is judged
    ("joint", "some"): (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    ("detached", "some"): (0.25, 0.5, 0.75, 1.0),
    ("joint", "high"): (0.0, 0.4, 0.7, 0.8, 0.9, 1.0),
    ("joint", "low"): (0.0, 0.4, 0.7, 0.8, 0.9, 1.0),
    ("detached", "high"): (0.75,),
    ("detached", "low"): (0.75,),
}
QUICK_BETAS = {("joint", "some"): (0.0, 0.7, 0.8, 1.0), ("detached", "some"): (0.75,), ("joint", "low"): (0.7, 1.0)}
BEST = (0.7, 0.8)  # the paper's range
METRICS = {
    "ndcg": "nDCG@10, true relevance",
    "ece": "ECE on the log",
    "ne": "NE on the log",
    "spread": "spread of the mean score, % of the label mean",
    "wobble": "wobble of an item's logit",
}


def named(beta: float, anchor: str, overlap: str) -> str:
    """The setting of a combination.

    >>> named(0.7, "joint", "some")
    'beta 0.7, joint, some overlap'
    """
    return f"beta {beta:g}, {anchor}, {overlap} overlap"


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every combination of the map under every seed."""
    grid = QUICK_BETAS if quick else BETAS
    settings = [named(beta, anchor, overlap) for (anchor, overlap), betas in grid.items() for beta in betas]
    return units_of(settings, quick=quick, seeds=seeds or SEEDS, cost=1.5 if quick else 5.0)


def feed(seed: int, overlap: str) -> Feed:
    """The world of table 3 with clicks only, under a logger that varies more or less."""
    return Feed(
        population=Population(seed=seed),
        logger=Logger(relevance=0.3, spurious=0.7, temperature=OVERLAPS[overlap]),
        behaviour=PositionBased(eta=(1.0, 0.7, 1.3)),
        tasks=(),
        positions=CONTEXTS["position"],
    )


def run_unit(unit: Unit) -> Numbers:
    """Train on a few logs of the same world and compare what would be served on one more."""
    beta, anchor, overlap = asked(unit.setting)
    world, first = feed(unit.seed, overlap), 100 * unit.seed
    sessions, retrainings = (6_000, 2) if unit.quick else (15_000, 2)
    test = world.log(10_000 if unit.quick else 20_000, seed=first)
    features = torch.from_numpy(test["features"])
    logits, probs = [], []
    for number in range(1, retrainings + 1):
        torch.manual_seed(first + number)
        model = DualHead(
            network(features.shape[1]),
            width=WIDTH,
            tasks=("click",),
            contexts=CONTEXTS,
            alpha=1 - beta if anchor == "joint" else max(1 - beta, 0.25),  # the curve needs some weight, not how much
            beta=beta,
            anchor=anchor,
        )
        train(model, as_log(world.log(sessions, seed=first + number), ("click",)), seed=first + number)
        with torch.no_grad():
            served = model.serving()(features)
        logits.append(served["click"].double().numpy())
        probs.append(served["click_prob"].double().numpy())
    return _judged(np.stack(logits), np.stack(probs), test)


def asked(setting: str) -> tuple[float, Literal["joint", "detached"], str]:
    """The combination of a setting.

    >>> asked("beta 0.7, joint, some overlap")
    (0.7, 'joint', 'some')
    """
    beta, anchor, overlap = setting.split(", ")
    return float(beta.removeprefix("beta ")), cast("Any", anchor), overlap.removesuffix(" overlap")


def _judged(logits: Any, probs: Any, test: dict[str, Any]) -> Numbers:
    # logits and probabilities are [retrainings, rows]
    label = test["click"]
    spread = 100 * probs.mean(1).std(ddof=1) / label.mean()
    odds = np.log(probs) - np.log1p(-probs)
    return {
        "ndcg": float(np.mean([metrics.ndcg(test["grade"], one, test["session"]) for one in logits])),
        "ece": float(np.mean([metrics.ece(label, one) for one in probs])),
        "ne": float(np.mean([metrics.normalised_entropy(label, one) for one in probs])),
        "spread": float(spread),
        "wobble": float(odds.std(axis=0, ddof=1).mean()),
        "observed_over_expected": float(label.mean() / probs.mean()),
    }


def summarise(finished: Sequence[Finished]) -> Result:
    """Every metric of every combination, and where ranking and calibration are best."""
    settings = list(dict.fromkeys(one.unit.setting for one in finished))
    rows = [
        Row(setting, name, estimate(by_seed(finished, setting, key)), digits=2 if key == "spread" else 4)
        for key, name in METRICS.items()
        for setting in settings
    ]
    points = []
    for setting in settings:
        beta, anchor, overlap = asked(setting)
        found = {key: float(by_seed(finished, setting, key).mean()) for key in ("ndcg", "ece")}
        points.append({"beta": beta, "anchor": anchor, "overlap": f"{overlap} overlap", **found})
    return Result(tuple(rows), _parts(finished, settings), {"rows": points}, _note(finished, settings))


def _of(finished: Sequence[Finished], beta: float, key: str, anchor: str = "joint", overlap: str = "some") -> Any:
    return by_seed(finished, named(beta, anchor, overlap), key)


def _papers(finished: Sequence[Finished], key: str, overlap: str = "some") -> Any:
    # mean over those of the paper's betas that were run, [seeds]
    run = {one.unit.setting for one in finished}
    betas = [beta for beta in BEST if named(beta, "joint", overlap) in run]
    return np.mean([_of(finished, beta, key, overlap=overlap) for beta in betas], axis=0)


def _parts(finished: Sequence[Finished], settings: Sequence[str]) -> tuple[Part, ...]:
    def beyond(key: str, beta: float) -> Any:
        return estimate(_of(finished, beta, key) - _papers(finished, key))

    detached = [key - _papers(finished, name) for name, key in ((k, _detached(finished, k)) for k in ("ndcg", "ece"))]
    return (
        *(
            Part(f"ranking at beta .7-.8 is better than at beta {beta:g}", beyond("ndcg", beta), below=0)
            for beta in (0.0, 0.6, 0.9, 1.0)
            if named(beta, "joint", "some") in settings
        ),
        Part("without alpha the served score is worse calibrated", beyond("ece", 1.0), above=0),
        Part("without alpha the mean score is less steady", beyond("spread", 1.0), above=0),
        Part("without alpha each score is less steady", beyond("wobble", 1.0), above=0),
        *(
            Part(
                f"ranking at beta .7-.8 is better than at beta 1, {overlap} overlap",
                estimate(_of(finished, 1.0, "ndcg", overlap=overlap) - _papers(finished, "ndcg", overlap)),
                below=0,
            )
            for overlap in OVERLAPS
            if overlap != "some" and named(1.0, "joint", overlap) in settings
        ),
        Part("the detached anchor at beta .75 ranks no better than joint at .7-.8", estimate(detached[0]), below=0),
        Part("and is calibrated no better", estimate(detached[1]), above=0),
    )


def _detached(finished: Sequence[Finished], key: str) -> Any:
    return _of(finished, 0.75, key, "detached")


def _note(finished: Sequence[Finished], settings: Sequence[str]) -> str:
    def mean(setting: str, key: str) -> float:
        return float(by_seed(finished, setting, key).mean())

    told = []
    for overlap in OVERLAPS:
        joint = [one for one in settings if one.endswith(f"joint, {overlap} overlap")]
        if joint:
            best = max(joint, key=lambda one: mean(one, "ndcg"))
            calm = min(joint, key=lambda one: mean(one, "ece"))
            told.append(f"{overlap} overlap: beta {asked(best)[0]:g} and {asked(calm)[0]:g}")
    papers, own = ({key: float(np.mean(f(finished, key))) for key in ("ndcg", "ece")} for f in (_papers, _detached))
    return (
        "With the joint anchor ranking and "
        f"calibration are best at different weights ({'; '.join(told)}): the paper's range is a compromise between "
        f"them. At .7-.8 nDCG is {papers['ndcg']:.4f} and ECE {papers['ece']:.4f}; the detached anchor at .75 has "
        f"{own['ndcg']:.4f} and {own['ece']:.4f}."
    )


def chart(series: dict[str, Any]) -> Any:
    """The map: calibration across, ranking up, one line over beta per anchor, one panel per overlap."""
    alt = need("altair")
    base = alt.Chart().encode(
        x=alt.X("ece:Q", title="ECE of what is served", scale=alt.Scale(zero=False)),
        y=alt.Y("ndcg:Q", title="nDCG@10, true relevance", scale=alt.Scale(zero=False)),
        color=alt.Color("anchor:N", title="anchor", sort=list(ANCHORS)),
    )
    line = base.mark_line(opacity=0.4).encode(order="beta:Q")
    text = base.mark_text(dy=-9, fontSize=9).encode(text=alt.Text("beta:Q", format=".2~f"))
    layers = alt.layer(line, base.mark_point(filled=True, size=40), text, data=alt.Data(values=series["rows"]))
    facet = alt.Facet("overlap:N", title=None, sort=[f"{overlap} overlap" for overlap in OVERLAPS])
    return layers.properties(width=260, height=240).facet(facet)
