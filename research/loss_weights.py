"""Section 5.2: the weight beta of the isotonic head from 0 to 1, alpha being the rest; where is which thing best?

For each beta several models are trained on logs of their own, as a pipeline that retrains does, and judged together:

    ndcg      of the inference head against true relevance: ranking
    ece, ne   of the served probability on logged rows: calibration
    spread    standard deviation over retrainings of its mean, in percent of the label mean: stability
    wobble    standard deviation over retrainings of an item's logit, averaged over items: stability of each score
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from isolayer import metrics
from isolayer.debias.heads import DualHead
from isolayer.errors import need
from research.loop import WIDTH, as_log, network, train
from research.offline_debiasing import CONTEXTS, feed
from research.result import Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of

CLAIM = (
    "A weight of the isotonic head between 0.7 and 0.8 debiases best, and some weight on the inference head is needed "
    "to keep served scores calibrated and steady."
)
PAPER = "section 5.2: 0.7 <= beta <= 0.8, alpha not zero"
SEEDS = 6
BETAS = tuple(round(0.1 * tenth, 1) for tenth in range(11))
QUICK_BETAS = (0.0, 0.4, 0.7, 0.8, 1.0)
BEST = (0.7, 0.8)  # the paper's range
DETACHED = "0.75, detached anchor"
METRICS = {
    "ndcg": "nDCG@10, true relevance",
    "ece": "ECE on the log",
    "ne": "NE on the log",
    "spread": "spread of the mean score, % of the label mean",
    "wobble": "wobble of an item's logit",
}


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every beta, and the detached anchor, under every seed."""
    settings = [f"{beta:.1f}" for beta in (QUICK_BETAS if quick else BETAS)]
    return units_of([*settings, DETACHED], quick=quick, seeds=seeds or SEEDS, cost=4 if quick else 12)


def run_unit(unit: Unit) -> Numbers:
    """Train on a few logs of the same world and compare what would be served on one more."""
    world, first = feed(unit.seed, tasks=()), 100 * unit.seed
    sessions, retrainings = (8_000, 2) if unit.quick else (20_000, 3)
    detached = unit.setting == DETACHED
    beta = 0.75 if detached else float(unit.setting)
    test = world.log(20_000, seed=first)
    features = torch.from_numpy(test["features"])
    logits, probs = [], []
    for number in range(1, retrainings + 1):
        torch.manual_seed(first + number)
        model = DualHead(
            network(features.shape[1]),
            width=WIDTH,
            tasks=("click",),
            contexts=CONTEXTS,
            alpha=1 - beta,
            beta=beta,
            anchor="detached" if detached else "joint",
        )
        train(model, as_log(world.log(sessions, seed=first + number), ("click",)), seed=first + number)
        with torch.no_grad():
            served = model.serving()(features)
        logits.append(served["click"].double().numpy())
        probs.append(served["click_prob"].double().numpy())
    return _judged(np.stack(logits), np.stack(probs), test)


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
    """Every metric by beta, and where each is best."""
    settings = list(dict.fromkeys(one.unit.setting for one in finished))
    rows = [
        Row(f"beta {setting}", name, estimate(by_seed(finished, setting, key)), digits=2 if key == "spread" else 4)
        for key, name in METRICS.items()
        for setting in settings
    ]
    points = [
        {"beta": float(setting), "metric": name, **estimate(by_seed(finished, setting, key))._asdict()}
        for key, name in METRICS.items()
        for setting in settings
        if setting != DETACHED
    ]
    return Result(tuple(rows), _parts(finished), {"rows": points}, _note(finished, settings))


def _paper(finished: Sequence[Finished], key: str) -> Any:
    # mean over the paper's betas, [seeds]
    return np.mean([by_seed(finished, f"{beta:.1f}", key) for beta in BEST], axis=0)


def _parts(finished: Sequence[Finished]) -> tuple[Part, ...]:
    def beyond(key: str, beta: str) -> Any:
        return estimate(by_seed(finished, beta, key) - _paper(finished, key))

    run = {one.unit.setting for one in finished}
    return (
        *(
            Part(f"ranking at beta .7-.8 is better than at beta {beta}", beyond("ndcg", beta), below=0)
            for beta in ("0.0", "0.6", "0.9", "1.0")
            if beta in run
        ),
        Part("without alpha the served score is worse calibrated", beyond("ece", "1.0"), above=0),
        Part("without alpha the mean score is less steady", beyond("spread", "1.0"), above=0),
        Part("without alpha each score is less steady", beyond("wobble", "1.0"), above=0),
    )


def _note(finished: Sequence[Finished], settings: Sequence[str]) -> str:
    joint = [setting for setting in settings if setting != DETACHED]

    def mean(setting: str, key: str) -> float:
        return float(by_seed(finished, setting, key).mean())

    best = max(joint, key=lambda setting: mean(setting, "ndcg"))
    calm = {key: min(joint, key=lambda setting: mean(setting, key)) for key in ("ece", "spread", "wobble")}
    return (
        f"Ranking is best at beta {best}, calibration at {calm['ece']}, the mean score steadiest at {calm['spread']}, "
        f"each score at {calm['wobble']}. The detached anchor has nDCG {mean(DETACHED, 'ndcg'):.4f} (best joint: "
        f"{mean(best, 'ndcg'):.4f}) with ECE {mean(DETACHED, 'ece'):.4f} (best joint: {mean(calm['ece'], 'ece'):.4f})."
    )


def chart(series: dict[str, Any]) -> Any:
    """Each metric over beta with its interval; the paper's range is shaded."""
    alt = need("altair")
    base = alt.Chart().encode(x=alt.X("beta:Q", title="beta"))
    shade = alt.Chart().mark_rect(color="#f0a30a", opacity=0.03).encode(x=alt.datum(BEST[0]), x2=alt.datum(BEST[1]))
    band = base.mark_area(opacity=0.2).encode(y="lower:Q", y2="upper:Q")
    line = base.mark_line(point=True).encode(y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)))
    layers = alt.layer(shade, band, line, data=alt.Data(values=series["rows"])).properties(width=230, height=180)
    facet = alt.Facet("metric:N", title=None, sort=list(METRICS.values()))
    return layers.facet(facet, columns=3).resolve_scale(y="independent")
