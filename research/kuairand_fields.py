"""KuaiRand with all its fields: what does a calibrator gain that sees every field, and which kind gains most?

The design, stated before any run. A boosted click model that is blind to the tab learns from the first April days, as
in `research.kuairand_calibration`; calibrators are fitted on the last ones and judged on May, with intervals by
resampling users. All but the first three see the same fields: tab, what is known of the user and of the video, hour.

    raw score            as it is
    one curve            exact, for all rows
    curves by tab        `IsotonicCalibrator(("tab",))`
    all fields           `IsotonicCalibrator(fields="all")`: a curve, and corrections by field and by pairs of fields
    trees from the score LightGBM that starts at the score (``init_score``) and never falls with it, best of three
                         settings on the last of the days to fit
    monotone network     a network over embeddings of all fields, monotone in the logit as an integral of a positive
                         network, in the manner of UMC (Bai et al. 2025), best of two numbers of epochs on that day
    MCGrad               its defaults, where it is installed (extra ``peers``)

Users of May who have no row in the fit are judged apart as well: what is learned of a user by name helps nobody else.
Published figures of UMC are on other data (Avazu), other rows and all 21 of its fields; they stand beside ours for
scale and are not a comparison.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isolayer import metrics
from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.evaluation import prob_of
from isolayer.errors import need
from research.calibrators import PlattCalibrator
from research.charts import intervals
from research.data import kuairand_path
from research.datasets import kuairand
from research.kuairand_calibration import FITTED_FROM, TESTED_FROM, chosen_on, click_logit, features
from research.resampling import difference, draws
from research.result import Finished, Numbers, Part, Result, Row, Unit, units_of

CLAIM = "Weights conditioned on arbitrary context features calibrate every segment of a high-dimensional space."
PAPER = "section 1.5, no public data; published by others on Avazu, other rows and 21 fields: ECE .0413 raw, .0033 UMC"
SEEDS = 3
RAW, ONE, TAB, ALL = "raw score", "one curve", "curves by tab", "all fields"
TREES, NETWORK, MCGRAD = "trees from the score", "monotone network", "MCGrad"
METHODS = (RAW, ONE, TAB, ALL, TREES, NETWORK)
METRICS = {"loss": "log loss", "ece": "ECE", "f-rce": "error by field (mean F-RCE of 5 fields)"}
UNSEEN = "unseen users"
JUDGED = {"loss": "log loss", "ece": "ECE", "f-rce": "error by field", UNSEEN: f"log loss on {UNSEEN}"}
JUDGED_BY = ("tab", "user_active_degree", "video_type", "upload_type", "hour")
CODES = ("tab", "user_active_degree", "video_type", "upload_type", "tag", "music_type")
NUMBERS = ("follow_user_num", "fans_user_num", "friend_user_num", "register_days", "video_duration")
FLAGS = ("is_live_streamer", "is_video_author", *(f"onehot_feat{at}" for at in range(12)))
SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_leaves": 7, "min_data_in_leaf": 50},
    {"num_leaves": 15, "min_data_in_leaf": 100, "lambda_l2": 5.0},
    {"num_leaves": 31, "min_data_in_leaf": 20, "feature_fraction": 0.7},
)
EPOCHS, WIDTH, BATCH, BINS = (2, 5), 32, 1024, 16
Floats = NDArray[np.float64]


class Rows(NamedTuple):
    """Scores, labels, users and fields (text or numbers) of some rows."""

    score: Floats
    label: NDArray[np.int64]
    user: NDArray[Any]
    last: NDArray[np.bool_]  # whether of the last day, on which settings are chosen
    fields: dict[str, NDArray[Any]]

    def part(self, kept: NDArray[Any]) -> Rows:
        """Some of the rows."""
        fields = {name: column[kept] for name, column in self.fields.items()}
        return Rows(self.score[kept], self.label[kept], self.user[kept], self.last[kept], fields)

    def frame(self) -> dict[str, NDArray[Any]]:
        """What the calibrator takes."""
        return {"score": self.score, **self.fields}


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """One training of everything per seed."""
    return units_of(["all"], quick=quick, seeds=seeds or SEEDS, cost=12.0 if quick else 45.0)


def run_unit(unit: Unit) -> Numbers:
    """Fit every calibrator on the same rows and judge it on May, on all rows and on unseen users."""
    fit, test = rows_of(unit)
    numbers: Numbers = {"rows": len(test.label), "fields": len(fit.fields)}
    weight = draws(test.user, 20 if unit.quick else 100)
    unseen = ~np.isin(test.user, np.unique(fit.user))
    numbers["unseen rows"] = int(unseen.sum())
    for method in methods():
        prob = METHOD[method](fit, test, unit.seed)
        numbers |= {f"{method} {key}": value for key, value in judged(prob, test, weight).items()}
        loss = _losses(test.label, prob)[unseen]
        total = np.maximum(weight[:, unseen].sum(1), 1)
        numbers[f"{method} {UNSEEN}"] = float(loss.mean()) if unseen.any() else 0.0
        numbers[f"{method} {UNSEEN} draws"] = (weight[:, unseen] @ loss / total).tolist()
    return numbers


def methods() -> list[str]:
    """The methods that can be run here."""
    return [*METHODS, *([MCGRAD] if find_spec("mcgrad") else [])]


def rows_of(unit: Unit) -> tuple[Rows, Rows]:
    """Rows to fit and rows to test, scored by a model of earlier days."""
    columns = kuairand(kuairand_path())
    day, label = columns["date"], columns["is_click"].astype(np.int64)
    score = click_logit(features(columns), label, day < FITTED_FROM, seed=unit.seed)
    fields = {name: columns[name].astype(str) for name in (*CODES, *FLAGS) if name in columns}
    fields |= {name: columns[name].astype(float) for name in NUMBERS if name in columns}
    fields["hour"] = (columns["hourmin"] // 100).astype(float)
    whole = Rows(score, label, columns["user_id"], day == day[day < TESTED_FROM].max(), fields)
    fit = np.flatnonzero((day >= FITTED_FROM) & (day < TESTED_FROM))
    test = np.flatnonzero(day >= TESTED_FROM)
    if unit.quick:
        rng = np.random.default_rng(unit.seed)
        fit, test = (np.sort(rng.choice(rows, min(6_000, len(rows)), replace=False)) for rows in (fit, test))
    return whole.part(fit), whole.part(test)


def _raw(fit: Rows, test: Rows, seed: int) -> Floats:
    return prob_of(test.score)


def _one(fit: Rows, test: Rows, seed: int) -> Floats:
    return np.asarray(IsotonicCalibrator().fit(fit.score, fit.label).predict_proba(test.score)[:, 1])


def _by_tab(fit: Rows, test: Rows, seed: int) -> Floats:
    known, asked = ({"score": rows.score, "tab": rows.fields["tab"]} for rows in (fit, test))
    return np.asarray(IsotonicCalibrator(("tab",)).fit(known, fit.label).predict_proba(asked)[:, 1])


def _all_fields(fit: Rows, test: Rows, seed: int) -> Floats:
    return np.asarray(IsotonicCalibrator(fields="all").fit(fit.frame(), fit.label).predict_proba(test.frame())[:, 1])


def _trees(fit: Rows, test: Rows, seed: int) -> Floats:
    lightgbm = need("lightgbm")
    line = PlattCalibrator().fit(fit.score, fit.label)
    start, asked_start = line.decision_function(fit.score), line.decision_function(test.score)
    table, asked = coded(fit, test)
    held = fit.last
    codes = [at for at, name in enumerate(["score", *fit.fields]) if name in (*CODES, *FLAGS)]

    def data(kept: NDArray[np.bool_]) -> Any:
        return lightgbm.Dataset(
            table[kept], fit.label[kept], init_score=start[kept], categorical_feature=codes, free_raw_data=False
        )

    tried = []
    for setting in SETTINGS:
        params = {
            "objective": "binary",
            "learning_rate": 0.05,
            "num_threads": 1,
            "seed": seed,
            "verbose": -1,
            **setting,
        }
        params["monotone_constraints"] = [1, *([0] * len(fit.fields))]
        stop = lightgbm.early_stopping(30, verbose=False)
        model = lightgbm.train(params, data(~held), 1_000, [data(held)], callbacks=[stop])
        tried.append((model.best_score["valid_0"]["binary_logloss"], params, max(model.best_iteration, 1)))
    _, params, trees = min(tried, key=lambda one: one[0])
    model = lightgbm.train(params, data(np.ones(len(held), bool)), trees)
    return prob_of(asked_start + model.predict(asked, raw_score=True))


def coded(fit: Rows, test: Rows) -> tuple[Floats, Floats]:
    """Score and fields as numbers, ``[n, 1 + fields]``: texts are codes of the rows to fit, -1 where new."""
    tables = []
    for rows in (fit, test):
        columns = [rows.score]
        for name, column in rows.fields.items():
            if column.dtype.kind == "f":
                columns.append(column)
            else:
                known = np.unique(fit.fields[name])
                at = np.searchsorted(known, column).clip(max=len(known) - 1)
                columns.append(np.where(known[at] == column, at, -1).astype(float))
        tables.append(np.stack(columns, axis=1))
    return tables[0], tables[1]


class MonotoneNetwork(nn.Module):
    r"""A logit that rises with the score for any fields: :math:`a(e) + \int_0^z \mathrm{softplus}\,h(t, e)\,dt`.

    ``e`` are embeddings of all fields; id 0 of each is for values that are new. The identity before training.

    >>> network = MonotoneNetwork([3, 4])
    >>> network(torch.tensor([0.5]), torch.zeros(1, 2, dtype=torch.long)).item()
    0.5
    """

    nodes: Tensor
    masses: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        nodes, masses = np.polynomial.legendre.leggauss(8)
        self.register_buffer("nodes", torch.as_tensor((nodes + 1) / 2, dtype=torch.float32))
        self.register_buffer("masses", torch.as_tensor(masses / 2, dtype=torch.float32))
        self.embeddings = nn.ModuleList(nn.Embedding(size + 1, 4) for size in sizes)
        self.fields = nn.Sequential(nn.Linear(4 * len(sizes), WIDTH), nn.SiLU())
        self.offset, self.inner = nn.Linear(WIDTH, 1), nn.Linear(1 + WIDTH, WIDTH)
        self.outer = nn.Linear(WIDTH, 1)
        for linear in (self.offset, self.outer):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
        nn.init.constant_(self.outer.bias, float(np.log(np.e - 1)))  # softplus of it is 1

    def forward(self, score: Tensor, ids: Tensor) -> Tensor:
        """Calibrated logits ``[batch]`` of scores ``[batch]`` and field ids ``[batch, fields]``."""
        fields = self.fields(torch.cat([one(ids[:, at]) for at, one in enumerate(self.embeddings)], dim=1))
        points = (score[:, None] * self.nodes)[..., None]  # [batch, nodes, 1]
        shared = fields[:, None].expand(-1, len(self.nodes), -1)
        slope = nn.functional.softplus(self.outer(nn.functional.silu(self.inner(torch.cat([points, shared], dim=2)))))
        rise: Tensor = score * (slope.squeeze(-1) @ self.masses) + self.offset(fields).squeeze(-1)
        return rise


def _network(fit: Rows, test: Rows, seed: int) -> Floats:
    known, asked = (torch.from_numpy(table[:, 1:] + 1).long() for table in _binned(fit, test))
    score, label = torch.from_numpy(fit.score).float(), torch.from_numpy(fit.label).float()
    held = torch.from_numpy(fit.last)
    sizes = [int(column.max()) + 1 for column in known.T]

    def learned(rows: Tensor, epochs: int) -> MonotoneNetwork:
        torch.manual_seed(seed)
        network = MonotoneNetwork(sizes)
        optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.01, fused=True)
        where = torch.nonzero(rows).squeeze(1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * -(-len(where) // BATCH))
        for _ in range(epochs):
            for part in where[torch.randperm(len(where))].split(BATCH):
                hidden = known[part] * (torch.rand(known[part].shape) >= 0.02)  # so that id 0 is learned too
                loss = nn.functional.binary_cross_entropy_with_logits(network(score[part], hidden), label[part])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
        return network.eval()

    def told(network: MonotoneNetwork, scores: Tensor, ids: Tensor) -> Floats:
        with torch.no_grad():
            parts = [network(*pair) for pair in zip(scores.split(16_384), ids.split(16_384), strict=True)]
        return prob_of(torch.cat(parts).double().numpy())

    def loss(epochs: int) -> float:
        return metrics.log_loss(fit.label[held.numpy()], told(learned(~held, epochs), score[held], known[held]))

    best = learned(torch.ones_like(held), min(EPOCHS, key=loss))
    return told(best, torch.from_numpy(test.score).float(), asked)


def _binned(fit: Rows, test: Rows) -> tuple[Floats, Floats]:
    """Fields as codes, numbers in bins of equal mass."""
    known, asked = coded(fit, test)
    for at, column in enumerate(fit.fields.values(), start=1):
        if column.dtype.kind == "f":
            edges = np.unique(np.nanquantile(known[:, at], np.arange(1, BINS) / BINS))
            for table in (known, asked):
                table[:, at] = np.searchsorted(edges, np.nan_to_num(table[:, at], nan=-1e9), side="right")
    return known, asked


def _mcgrad(fit: Rows, test: Rows, seed: int) -> Floats:
    pandas, own = need("pandas"), need("mcgrad.methods")
    logging.getLogger("mcgrad").setLevel(logging.ERROR)
    text = [name for name, column in fit.fields.items() if column.dtype.kind != "f"]
    names = {
        "categorical_feature_column_names": text,
        "numerical_feature_column_names": [name for name in fit.fields if name not in text],
    }
    known, asked = (pandas.DataFrame({**rows.fields, "p": prob_of(rows.score)}) for rows in (fit, test))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = own.MCGrad().fit(known.assign(label=fit.label), "p", "label", **names)
        return np.asarray(model.predict(asked, "p", **names))


METHOD: dict[str, Callable[[Rows, Rows, int], Floats]] = {
    RAW: _raw,
    ONE: _one,
    TAB: _by_tab,
    ALL: _all_fields,
    TREES: _trees,
    NETWORK: _network,
    MCGRAD: _mcgrad,
}


def judged(prob: Floats, test: Rows, weight: NDArray[np.float32]) -> Numbers:
    """Every metric on all rows and on each resample of users."""
    fields = [np.unique(test.fields[name], return_inverse=True)[1] for name in JUDGED_BY if name in test.fields]
    losses, total = _losses(test.label, prob), weight.sum(1)

    def by_field(w: NDArray[Any] | None) -> float:
        return float(np.mean([metrics.f_rce(test.label, prob, field, weight=w) for field in fields]))

    return {
        "loss": float(losses.mean()),
        "loss draws": (weight @ losses / total).tolist(),
        "ece": metrics.ece(test.label, prob),
        "ece draws": [metrics.ece(test.label, prob, weight=one) for one in weight[:20]],
        "f-rce": by_field(None),
        "f-rce draws": [by_field(one) for one in weight[:20]],
    }


def _losses(label: NDArray[np.int64], prob: Floats) -> NDArray[np.float32]:
    kept = prob.clip(1e-9, 1 - 1e-9)
    return np.asarray(np.where(label == 1, -np.log(kept), -np.log1p(-kept)), dtype=np.float32)


def _ran(finished: Sequence[Finished]) -> list[str]:
    return [name for name in METHOD if f"{name} loss" in finished[0].numbers]


def summarise(finished: Sequence[Finished]) -> Result:
    """Every metric of every method, and all fields against each peer over the same resampled users."""
    ran = _ran(finished)
    published = {(RAW, "ece"): ".0413 (Avazu)", (NETWORK, "ece"): ".0033 (UMC, Avazu)"}
    published |= {(RAW, "f-rce"): ".421 (Avazu)", (NETWORK, "f-rce"): ".117 (UMC, Avazu)"}
    rows = [
        Row(name, what, difference(finished, "all", f"{name} {key}"), published.get((name, key), ""), 4)
        for key, what in {**METRICS, UNSEEN: f"log loss, {UNSEEN}"}.items()
        for name in ran
    ]
    parts = [
        Part(
            f"curves with all fields have lower {what} than {name}",
            difference(finished, "all", f"{ALL} {key}", f"{name} {key}"),
            below=0,
        )
        for key, what in JUDGED.items()
        for name in ran
        if name not in (ALL, RAW)
    ]
    series = [
        {"method": name, "metric": what, **difference(finished, "all", f"{name} {key}")._asdict()}
        for key, what in METRICS.items()
        for name in ran
        if name != RAW
    ]
    return Result(tuple(rows), tuple(parts), {"rows": series}, _note(finished, ran))


def _note(finished: Sequence[Finished], ran: Sequence[str]) -> str:
    numbers = finished[0].numbers
    mcgrad = "MCGrad has its defaults." if MCGRAD in ran else "MCGrad was not installed, so it is not compared."
    return (
        f"Real data: {numbers['rows']:,} rows of May, "
        f"{numbers['unseen rows']:,} of them of users without a row in the fit, and "
        f"{numbers['fields']} fields. Figures in the paper's column are published ones on Avazu, with other rows and "
        f"other fields: they are shown for scale, not as a comparison. "
        "Trees and the network have the best of a few settings on the last of the days to fit; the curves have their "
        f"defaults. {mcgrad} {chosen_on()}"
    )


def chart(series: dict[str, Any]) -> Any:
    """Every metric of every calibrator with its interval; the raw score is off the scale and left out."""
    order = list(dict.fromkeys(row["method"] for row in series["rows"]))
    return intervals(series["rows"], y="method", panel="metric", order=order, columns=3, ours=ALL)
