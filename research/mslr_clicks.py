"""Learning to rank from clicks on real documents: MSLR features and grades, clicks simulated over them.

Lists of ten documents of a query are ranked by a logger and clicked by the field's click models; models learn from the
clicks and are judged on all documents of the test queries, by nDCG@10 against the editors' grades. Two loggers:

    other feature   ranks by the feature that tells least of the grade: what bias does when the logger wants
                    something else
    weak ranker     a linear ranker fitted to the grades of three queries: what a first version in production is

Boosted trees learn from the same clicks (`tree_methods`), with the settings that were best for the click model in
simulated worlds (`tree_tuning`). Those of ours are there twice: learning from clicks alone, as the engines do, and with
a teacher, the network that learned the curves, whose probabilities are a part of the labels of the trees. They are
compared with the corrections of the engines and with naive trees, which are fitted to the clicks without a correction.
The heads are compared with networks: the naive one, Position Dropout and PAL. Intervals are over resampled test queries
and over seeds of clicks, lists and networks.

The study was reported before trees of ours learned from clicks alone, before the engines had the settings that they
have now, and before PAL and the naive trees, which had been trained, were compared with ours. The seeds of clicks,
lists and networks reported now are others; the documents and test queries are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer.debias.baselines import PAL, Naive, PositionDropout
from isolayer.debias.heads import DualHead
from isolayer.errors import InputError
from isolayer.metrics.ranking import ndcg_sums
from isolayer.simulate.behaviours import GAIN, Behaviour, PositionBased, Shown, Trust
from research import tree_methods
from research.boosted_trees import ROUNDS
from research.boosted_trees import note as note_on_teacher
from research.charts import intervals, records
from research.data import data_path
from research.datasets import mslr
from research.loop import WIDTH, Log, network, train
from research.resampling import difference, draws
from research.result import Finished, Numbers, Part, Result, Row, Unit, units_of
from research.tree_methods import ENGINES, LABELS, TAUGHT, ClickLog, rank
from research.tree_settings import setting_of

CLAIM = "The isotonic head takes position out of relevance, where Position Dropout does not."
PAPER = "section 5, no public data"
ARCHIVE = "rankeval-0.8.2.tar.gz"  # as pip saves it; a folder or file called mslr goes before it
SEEDS = 4
SEEN = 100  # seeds that were reported before the trees were what they are now
LENGTH = 10
CONTEXTS = {"position": LENGTH}
BEHAVIOURS: dict[str, Behaviour] = {"position bias": PositionBased(), "trust bias": Trust()}
LOGGERS = ("other feature", "weak ranker")
SETTINGS = tuple(f"{bias}, {logger}" for logger in LOGGERS for bias in BEHAVIOURS)
NAIVE, DROPOUT, PAL_, JOINT, DETACHED = "naive", "Position Dropout", "PAL", "dual head", "dual head, detached anchor"
CEILING = "clicks without bias"
NETWORKS = (NAIVE, DROPOUT, PAL_, JOINT, DETACHED, CEILING)
TREES = {f"trees, {method}": method for method in (tree_methods.NAIVE, *ENGINES, LABELS, TAUGHT)}
METHODS = (*NETWORKS, *TREES)
RIVAL_TREES = {tree_methods.NAIVE: "naive trees"} | {engine: engine for engine in ENGINES}  # as parts call them
TUNED_AS = {"position bias": "PBM", "trust bias": "trust"}
QUERIES_OF_WEAK_RANKER = 3
Table = NDArray[np.float32]


class Documents(NamedTuple):
    """Documents of queries, sorted by query."""

    features: Table  # [documents, features], standardised
    grade: NDArray[np.int64]
    query: NDArray[np.int64]


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every click model and logger under every seed."""
    return units_of(SETTINGS, quick=quick, seeds=seeds or SEEDS, cost=5.0 if quick else 100.0, seen=SEEN)


def run_unit(unit: Unit) -> Numbers:
    """Log clicks, train every method on them, judge on the test queries."""
    torch.manual_seed(unit.seed)
    named = data_path("mslr")
    train_docs, test_docs = _documents_once(named if named.exists() else data_path(ARCHIVE))
    bias, logger = unit.setting.split(", ")
    rng = np.random.default_rng(unit.seed)
    score = logging_score(train_docs, logger, rng)
    biased, unbiased = click_log(train_docs, score, BEHAVIOURS[bias], 3_000 if unit.quick else 15_000, rng)
    queries, start = np.unique(test_docs.query, return_index=True)
    weight = draws(test_docs.query, 50 if unit.quick else 400)[:, start].astype(np.float64)  # [resamples, queries]
    numbers: Numbers = {"queries": len(queries)}
    of_trees = log_of_trees(biased)
    for name in METHODS:
        if name in TREES:
            relevance = by_trees(TREES[name], of_trees, test_docs, unit)
        else:
            log = unbiased if name == CEILING else biased
            trained = train(model(name, log.features.shape[1]), log, epochs=2 if unit.quick else 3, seed=unit.seed)
            relevance = trained.serving()(torch.from_numpy(test_docs.features))["click"].numpy()
        sums = ndcg_by_query(test_docs, relevance)
        numbers[f"{name} ndcg"] = float(sums[0].sum() / sums[1].sum())
        numbers[f"{name} ndcg draws"] = ((weight @ sums[0]) / (weight @ sums[1])).tolist()
    return numbers


def ndcg_by_query(docs: Documents, relevance: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """nDCG@10 of each query, and 1, or 0 for both where no document is relevant, ``[2, queries]``.

    >>> grade, query = np.array([0, 1, 0, 0]), np.array([5, 5, 8, 8])
    >>> ndcg_by_query(Documents(np.zeros((4, 1), np.float32), grade, query), np.array([2.0, 1.0, 2.0, 1.0])).round(4)
    array([[0.6309, 0.    ],
           [1.    , 0.    ]])
    """
    ends = np.flatnonzero(np.diff(docs.query)) + 1  # documents are sorted by query
    columns = zip(*(np.split(column, ends) for column in (docs.grade, relevance, docs.query)), strict=True)
    sums = [ndcg_sums(*each) for each in columns]
    return np.array([(one.total, one.weight) for one in sums]).T


def log_of_trees(log: Log) -> ClickLog:
    """The same log for trees."""
    context = {name: ids.numpy() for name, ids in log.context.items()}
    return ClickLog(log.features.numpy(), log.labels["click"].numpy(), context)


def by_trees(method: str, log: ClickLog, docs: Documents, unit: Unit) -> NDArray[np.float64]:
    """Scores of documents by boosted trees that have learned from clicks."""
    setting = setting_of(TUNED_AS[unit.setting.split(", ")[0]], method)
    return rank(method, log, docs.features, setting, rounds=10 if unit.quick else ROUNDS, seed=unit.seed)


def documents(path: Any) -> tuple[Documents, Documents]:
    """Training and test documents, features tamed by ``asinh`` and standardised over the training ones."""
    if Path(path).is_file() and Path(path).suffix in (".txt", ".svm", ".dat"):
        raise InputError(f"mslr: expected a folder with train.txt and test.txt, got the one file {path}; give both")
    parts = [mslr(path, part=part) for part in ("train", "test")]
    tamed = [np.arcsinh(part["features"]) for part in parts]
    mean, spread = tamed[0].mean(0), tamed[0].std(0)
    out = []
    for part, table in zip(parts, tamed, strict=True):
        order = np.argsort(part["query"], kind="stable")
        features = ((table - mean) / np.maximum(spread, 1e-6)).clip(-5, 5).astype(np.float32)
        out.append(Documents(features[order], part["grade"][order], part["query"][order]))
    return out[0], out[1]


_documents_once = cache(documents)  # parsing takes a second, and every unit of a process has the same documents


def logging_score(docs: Documents, logger: str, rng: np.random.Generator) -> NDArray[np.float64]:
    """What the logger thinks of every document, with deviation 1."""
    if logger == "other feature":
        varied = docs.features.std(0) > 0.5
        grade = (docs.grade - docs.grade.mean()) / docs.grade.std()
        told = np.where(varied, np.abs(docs.features.T @ grade) / len(grade), np.inf)
        score = docs.features[:, int(np.argmin(told))].astype(np.float64)
    else:
        chosen = rng.choice(np.unique(docs.query), QUERIES_OF_WEAK_RANKER, replace=False)
        rows = np.isin(docs.query, chosen)
        x, y = docs.features[rows].astype(np.float64), docs.grade[rows] - docs.grade[rows].mean()
        score = docs.features.astype(np.float64) @ np.linalg.solve(x.T @ x + 100 * np.eye(x.shape[1]), x.T @ y)
    return np.asarray(score / max(score.std(), 1e-9))


def click_log(
    docs: Documents, score: NDArray[np.float64], behaviour: Behaviour, lists: int, rng: np.random.Generator
) -> tuple[Log, Log]:
    """Clicks on lists drawn by Plackett-Luce from ten documents of a query, and those full attention would give."""
    _, start, count = np.unique(docs.query, return_index=True, return_counts=True)
    asked = rng.choice(np.flatnonzero(count >= LENGTH), lists)
    row = np.stack([start[q] + rng.choice(count[q], LENGTH, replace=False) for q in asked])  # [lists, positions]
    utility = score[row] + 0.3 * rng.gumbel(size=row.shape)
    row = np.take_along_axis(row, np.argsort(-utility, axis=1), axis=1)
    grade = docs.grade[row].astype(np.int8)
    curve = np.broadcast_to(behaviour.curve(LENGTH, np.ones(1)), row.shape).astype(np.float32)
    look, draw = (rng.random(row.shape, dtype=np.float32) for _ in range(2))
    clicks = behaviour.act(Shown(grade, curve, np.zeros(lists, np.int32), {}, look, {"click": draw})).label["click"]
    fair = rng.random(row.shape) < 0.1 + 0.9 * GAIN[grade]
    features = torch.from_numpy(docs.features[row.ravel()])
    position = {"position": torch.arange(LENGTH).repeat(lists)}
    biased, unbiased = (
        Log(features, position, {"click": torch.from_numpy(label.ravel()).float()}, {}) for label in (clicks, fair)
    )
    return biased, unbiased


def model(name: str, features: int) -> Any:
    """A method, untrained."""
    if name in (NAIVE, CEILING):
        return Naive(network(features), width=WIDTH)
    if name == DROPOUT:
        return PositionDropout(network(features + 4), width=WIDTH, contexts=CONTEXTS, drop=0.15, dim=4)
    if name == PAL_:
        return PAL(network(features), width=WIDTH, contexts=CONTEXTS)
    anchor: Any = "joint" if name == JOINT else "detached"
    return DualHead(network(features), width=WIDTH, tasks=("click",), contexts=CONTEXTS, anchor=anchor)


def summarise(finished: Sequence[Finished]) -> Result:
    """How every method ranks, and differences paired by seed and resampled queries."""
    rows = [
        Row(f"{setting}: {name}", "nDCG@10, graded test queries", difference(finished, setting, f"{name} ndcg"))
        for setting in SETTINGS
        for name in METHODS
    ]
    parts = [
        Part(
            f"{called} ranks better than {other} under {setting}",
            difference(finished, setting, f"{ours} ndcg", f"{other} ndcg"),
            above=0,
        )
        for ours, called in ((JOINT, "the paper's joint loss"), (DETACHED, "the detached anchor"))
        for setting in SETTINGS
        for other in (NAIVE, DROPOUT, PAL_)
    ]
    parts += [
        Part(
            f"trees, {ours}, rank better than {called} under {setting}",
            difference(finished, setting, f"trees, {ours} ndcg", f"trees, {method} ndcg"),
            above=0,
        )
        for ours in (LABELS, TAUGHT)
        for setting in SETTINGS
        for method, called in RIVAL_TREES.items()
    ]
    return Result(tuple(rows), tuple(parts), _series(finished), _note(finished))


def _note(finished: Sequence[Finished]) -> str:
    queries = finished[0].numbers["queries"]
    return (
        f"Real documents and grades, {queries} test queries; clicks are simulated. Networks have their defaults, and "
        f"{DROPOUT} the paper's rate: nothing was searched on these documents. {note_on_teacher()}"
    )


def _series(finished: Sequence[Finished]) -> dict[str, Any]:
    found = {(s, name): difference(finished, s, f"{name} ndcg") for s in SETTINGS for name in METHODS}
    return {
        "setting": [setting for setting, _ in found],
        "method": [name for _, name in found],
        **{key: [getattr(one, key) for one in found.values()] for key in ("value", "lower", "upper")},
    }


def chart(series: dict[str, Any]) -> Any:
    """How every method ranks under every click model and logger, with intervals."""
    rows = records(series)
    return intervals(rows, y="method", panel="setting", order=METHODS, title="nDCG@10", shared=True, ours=DETACHED)
