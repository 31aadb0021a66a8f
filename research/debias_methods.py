"""The methods of the debiasing benchmark: how each is built and trained, and the settings it was tuned over.

Every method of the field has as many settings to choose from, `TRIED` of them: three values of what is its own (the
rate of its bias parameters, a bound, a penalty), each at two learning rates of the network. All share the network, the
optimiser, the decay of the network's weights, the schedule and the number of steps. The setting of a method in a world
is the one that `debias_tuning` found best on other seeds, and its default where that has not been run. The dual head
and its `VARIANTS` have their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isolayer import metrics
from isolayer.debias import (
    DBN,
    DCM,
    PAL,
    UBM,
    AdditiveTower,
    Cascade,
    DualHead,
    DualLearning,
    GradientReversal,
    InversePropensity,
    Naive,
    PairwiseDebiasing,
    PositionAsFeature,
    PositionDropout,
    RegressionEM,
    TrustAffine,
    em_propensity,
    harvest,
    placement_weights,
)
from isolayer.nn.rates import parameter_groups

LENGTH, CONTEXTS = 10, {"position": 10, "device": 3}
QUERY = {"query_length": 3}  # a context where examination depends on it
HIDDEN, WIDTH, EMBEDDING = 64, 32, 4
RATE, EPOCHS, BATCH_LISTS = 1e-2, 5, 100
DECAY = 0.3  # of the network's weights; on other seeds it helped every method but the naive one, which may do without
TRIED = 6
READS = ("debias-tuning",)  # whose choices `tuned` reads, so that they count among what a unit has run with
RESULTS = Path(__file__).parents[1] / "docs" / "reproduced" / "debias-tuning.json"

Model = Naive | DualHead
Setting = dict[str, float]


class Rows(NamedTuple):
    """A log as tensors, lists one after the other."""

    columns: dict[str, NDArray[Any]]
    features: Tensor  # [rows, features]
    context: dict[str, Tensor]  # ids of each context, and the session
    labels: dict[str, Tensor]
    contexts: dict[str, int]

    @classmethod
    def of(cls, columns: dict[str, NDArray[Any]], contexts: dict[str, int], label: str = "click") -> Rows:
        """The simulator's columns as tensors."""
        context = {name: torch.from_numpy(columns[name]).long() for name in (*contexts, "session")}
        click = {"click": torch.from_numpy(columns[label]).float()}
        return cls(columns, torch.from_numpy(columns["features"]), context, click, contexts)


class Method(NamedTuple):
    """A method, and the settings that it may have; the first is its default."""

    make: Callable[[Rows, Setting], Model]
    tried: tuple[Setting, ...] = ({},)
    weight: Callable[[Rows, Setting], Tensor] | None = None  # of each row


def network(inputs: int) -> nn.Sequential:
    """The backbone of every method, to ``[batch, WIDTH]``."""
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH), nn.ReLU())


def backbone(rows: Rows, *, embedded: bool = False) -> nn.Sequential:
    """The same, for the features of a log, and for embedded contexts too."""
    return network(rows.features.shape[1] + embedded * EMBEDDING * len(rows.contexts))


def dual_head(rows: Rows, setting: Setting | None = None, *, alpha: float = 0.25, **options: Any) -> DualHead:
    """The paper's model as we wire it; beta is what alpha leaves."""
    given = {"alpha": alpha, "beta": 1 - alpha, "contexts": rows.contexts, **options}
    return DualHead(backbone(rows), width=WIDTH, tasks=("click",), **given)


def _each(name: str, *values: float, **fixed: float) -> tuple[Setting, ...]:
    """Three values of what a method has of its own, the first of them its default, each at two learning rates."""
    return tuple({name: value, "lr": lr, **fixed} for lr in (RATE, RATE / 3) for value in values)


def _plain(kind: Any, rate: float = 10) -> Method:
    return Method(lambda rows, setting: kind(backbone(rows), width=WIDTH, contexts=rows.contexts), _rates(rate))


def _rates(first: float = 10) -> tuple[Setting, ...]:
    """How many times faster than the network bias parameters learn, this first."""
    return _each("rate", first, *(rate for rate in (10, 30, 100) if rate != first))


def _by_position(kind: Any, tried: tuple[Setting, ...]) -> Method:
    def make(rows: Rows, setting: Setting) -> Model:
        own = {name: value for name, value in setting.items() if name not in ("rate", "lr", "decay")}
        model: Model = kind(backbone(rows), width=WIDTH, positions=LENGTH, **own)
        return model

    return Method(make, tried)


def _ips(estimate: Callable[[Rows], NDArray[np.float64]]) -> Method:
    def make(rows: Rows, setting: Setting) -> Model:
        propensity = estimate(rows).tolist()
        return InversePropensity(backbone(rows), width=WIDTH, propensity=propensity, clip=setting["clip"])

    return Method(make, _each("clip", 0.03, 0.1, 0.3))


def _harvested(rows: Rows) -> NDArray[np.float64]:
    columns, places = rows.columns, np.arange(LENGTH)
    found = harvest(columns["item"], columns["position"], columns["click"]).examination(LENGTH)
    known = np.isfinite(found)  # a small log may tell nothing of a position
    return np.interp(places, places[known], found[known])


def _by_em(rows: Rows) -> NDArray[np.float64]:
    columns = rows.columns
    return em_propensity(columns["features"], columns["position"], columns["click"], positions=LENGTH)


def _as_feature(rows: Rows, setting: Setting) -> Model:
    return PositionAsFeature(backbone(rows, embedded=True), width=WIDTH, contexts=rows.contexts, dim=EMBEDDING)


def _dropout(rows: Rows, setting: Setting) -> Model:
    options: Any = {"contexts": rows.contexts, "dim": EMBEDDING, "drop": setting["drop"]}
    return PositionDropout(backbone(rows, embedded=True), width=WIDTH, **options)


def _reversal(rows: Rows, setting: Setting) -> Model:
    return GradientReversal(backbone(rows), width=WIDTH, contexts=rows.contexts, eta=setting["eta"])


def _placement(rows: Rows, setting: Setting) -> Tensor:
    columns = rows.columns
    found = placement_weights(columns["features"], columns["position"], positions=LENGTH, clip=setting["clip"])
    return torch.from_numpy(found).float()


def _dual(**options: Any) -> Method:
    return Method(lambda rows, setting: dual_head(rows, **options))


_DECAYS = tuple({"decay": decay, "lr": lr} for lr in (RATE, RATE / 3, 3 * RATE) for decay in (DECAY, 0.0))
METHODS: dict[str, Method] = {
    "naive": Method(lambda rows, setting: Naive(backbone(rows), width=WIDTH), _DECAYS),
    "position as feature": Method(_as_feature, _rates(100)),
    "position dropout": Method(_dropout, _each("drop", 0.15, 0.05, 0.5, rate=100)),
    "additive tower": _plain(AdditiveTower, 100),
    "PAL": _plain(PAL, 100),
    "trust affine": _plain(TrustAffine),
    "IPS, harvested": _ips(_harvested),
    "IPS, EM": _ips(_by_em),
    "regression EM": _by_position(RegressionEM, _each("step", 0.05, 0.01, 0.2)),
    "DLA": _plain(DualLearning),
    "pairwise debiasing": _by_position(PairwiseDebiasing, _each("norm", 1.0, 0.0, 2.0)),
    "cascade model": _by_position(Cascade, _DECAYS),
    "DCM": _by_position(DCM, _rates()),
    "DBN": _by_position(DBN, _rates()),
    "UBM": _by_position(UBM, _rates()),
    "gradient reversal": Method(_reversal, _each("eta", 0.3, 1.0, 3.0, rate=100)),
    "dual head, placement weights": Method(
        lambda rows, setting: dual_head(rows), _each("clip", 10.0, 3.0, 30.0), _placement
    ),
    "dual head": _dual(),
}
VARIANTS: dict[str, Method] = {
    "dual head, cross": _dual(mode="cross"),
    "dual head, listwise": _dual(loss="listwise"),
    "dual head, pairwise": _dual(loss="pairwise"),
    "dual head, lambdarank": _dual(loss="lambdarank"),
    "dual head, JRC": _dual(loss="jrc"),
    "dual head, joint alpha .25": _dual(anchor="joint"),
    "two parallel heads": _dual(anchor="joint", wiring="parallel"),
}


def fit(model: Model, rows: Rows, *, seed: int, setting: Setting | None = None, weight: Tensor | None = None) -> Model:
    """Train in place: Adam, one rise and fall of the rate, batches of whole lists; in evaluation mode at the end."""
    setting = setting or {}
    generator = torch.Generator().manual_seed(seed)
    groups = parameter_groups(
        model,
        _own(setting, "lr", RATE),
        curve_lr=_own(setting, "rate", 10),
        decay=_own(setting, "decay", DECAY),
    )
    optimiser = torch.optim.Adam(groups, fused=True)
    lists = len(rows.features) // LENGTH
    steps = EPOCHS * (lists // BATCH_LISTS)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, [group["lr"] for group in groups], total_steps=steps, pct_start=0.1
    )
    for _ in range(EPOCHS):
        for features, context, click, share in _batches(rows, weight, generator):
            outputs = model(features, context)
            loss = model.loss(outputs, {"click": click}, weight=share)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def _batches(rows: Rows, weight: Tensor | None, generator: torch.Generator) -> Iterator[tuple[Any, ...]]:
    """One pass over the lists in random order, which is gathered once: features, context, clicks and weights."""
    lists = len(rows.features) // LENGTH
    order = torch.randperm(lists, generator=generator)[: lists - lists % BATCH_LISTS]
    row = (order.unsqueeze(1) * LENGTH + torch.arange(LENGTH)).view(-1)

    def parts(column: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = column.index_select(0, row).split(BATCH_LISTS * LENGTH)
        return found

    context = {name: parts(ids) for name, ids in rows.context.items()}
    features, click = parts(rows.features), parts(rows.labels["click"])
    share = (None,) * len(click) if weight is None else parts(weight)
    for batch, drawn in enumerate(zip(features, click, share, strict=True)):
        yield drawn[0], {name: ids[batch] for name, ids in context.items()}, drawn[1], drawn[2]


def _own(setting: Setting, name: str, default: float) -> float:
    return float(setting.get(name, default))


def trained(name: str, rows: Rows, *, seed: int, setting: Setting) -> Model:
    """A method, made from the seed and trained."""
    method = (METHODS | VARIANTS)[name]
    torch.manual_seed(seed)
    weight = None if method.weight is None else method.weight(rows, setting)
    return fit(method.make(rows, setting), rows, seed=seed, setting=setting, weight=weight)


def ndcg(model: Model, rows: Rows) -> float:
    """nDCG@10 of what would be served against the true grade."""
    logit = model.serving()(rows.features)["click"].numpy()
    return metrics.ndcg(rows.columns["grade"], logit, rows.columns["session"], k=10)


@cache
def tuned() -> dict[str, dict[str, Setting]]:
    """The best setting of each method in each world, as far as `debias_tuning` was run."""
    if not RESULTS.is_file():
        return {}
    found: dict[str, dict[str, Setting]] = json.loads(RESULTS.read_text())["series"]["best"]
    return found


def setting_of(clicks: str, method: str) -> Setting:
    """The setting of a method in the worlds of a click model; the dual head has its defaults in all of them."""
    default = (METHODS | VARIANTS)[method].tried[0]
    return default if method not in METHODS or method == "dual head" else tuned().get(clicks, {}).get(method, default)
