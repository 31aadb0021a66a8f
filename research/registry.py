"""The list of experiments. Each is a module of this package that offers the following.

    CLAIM       what the paper says, in a sentence
    PAPER       the table or figure it says it in, with its numbers
    units       (quick, seeds=None) -> the units of work, see `result.Unit`
    run_unit    (unit) -> a dict of numbers, strings and lists
    summarise   (list of finished units) -> `result.Result`
    chart       (series of the result) -> an Altair chart; may be absent, the table is always written

Nothing is imported before it is asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from isolayer.errors import InputError
from research.result import Finished, Numbers, Result, Unit


class Module(Protocol):
    """What the module of an experiment offers; ``chart`` beside it, where there is a picture."""

    CLAIM: str
    PAPER: str

    def units(self, quick: bool, seeds: int | None = None) -> list[Unit]:
        """What there is to do."""

    def run_unit(self, unit: Unit) -> Numbers:
        """Do it."""

    def summarise(self, finished: Sequence[Finished]) -> Result:
        """What it comes to."""


@dataclass(frozen=True)
class Experiment:
    """A table, figure or study that one command reproduces.

    >>> find(["offline-debiasing"])[0].title
    'Offline debiasing: AUC and NE of Like and Click (table 3)'
    """

    name: str
    title: str
    module: str
    data: str = "simulated"
    chooses: bool = False  # settings for others, which read what is committed of it; ``all`` leaves it out

    def load(self) -> Module:
        """Its module."""
        return cast("Module", import_module(f"research.{self.module}"))

    @property
    def claim(self) -> str:
        """What the paper says."""
        return self.load().CLAIM

    @property
    def paper(self) -> str:
        """Where it says it, with its numbers."""
        return self.load().PAPER

    @property
    def design(self) -> str:
        """How it is done, as its module says it, without the sentence that names it.

        >>> find(["notifications"])[0].design.splitlines()[0].split(".")[0]
        'The design, stated before any run'
        """
        return inspect.cleandoc(self.load().__doc__ or "").partition("\n\n")[2].replace("``", "`")

    def chart(self, series: Any) -> Any:
        """Its picture as an Altair chart, or None."""
        draw = getattr(self.load(), "chart", None)
        return None if draw is None else draw(series)


EXPERIMENTS = (
    Experiment(
        "expressiveness",
        "Expressive power: y = x^2 and a target that falls (figure 2)",
        "expressiveness",
        data="two curves",
    ),
    Experiment(
        "stated-numbers",
        "What the paper states of clipping, buckets and O/E, worked out",
        "stated_numbers",
        data="arithmetic",
    ),
    Experiment("ranking-ties", "What the steps of isotonic regression cost in ranking (section 2)", "ranking_ties"),
    Experiment("regularisation", "The layer with and without its constraint, few rows (section 3.5)", "regularisation"),
    Experiment("downstream", "Downstream calibration with sparse labels (table 1, figure 3)", "downstream"),
    Experiment("separate-layer", "A layer learned apart or jointly, under shift (section 3.2)", "separate_layer"),
    Experiment("offline-debiasing", "Offline debiasing: AUC and NE of Like and Click (table 3)", "offline_debiasing"),
    Experiment("observed-over-expected", "O/E by position (table 5)", "observed_over_expected"),
    Experiment("learned-curves", "Learned curves by task, position and platform (figures 5 and 6)", "learned_curves"),
    Experiment("loss-weights", "Loss weights: a map over beta, anchor and overlap (section 5.2)", "loss_weights"),
    Experiment("notifications", "Simulated A/B test of notifications by calibrated scores (table 2)", "notifications"),
    Experiment("ab-test", "Simulated A/B test of debiasing (table 4)", "ab_test"),
    Experiment("per-task-isotonic", "Platt and 12 per-task isotonic regressions (section 5.3)", "per_task_isotonic"),
    Experiment(
        "overhead",
        "CPU overhead of the head, and distillation (section 5.7)",
        "overhead",
        data="timings, and simulated",
    ),
    Experiment("incremental", "A year of daily updates under drift, against propensities (conclusion)", "incremental"),
    Experiment(
        "debias-benchmark",
        "Debiasing where true relevance is known, each rival with the best of six settings",
        "debias_benchmark",
    ),
    Experiment("debias-variants", "Variants of the dual head: losses, wirings, weights", "debias_variants"),
    Experiment("advised-alpha", "The advised loss weight in worlds that it was not set on", "advised_alpha"),
    Experiment(
        "boosted-trees", "Boosted trees from biased clicks, against LightGBM's and XGBoost's own", "boosted_trees"
    ),
    Experiment(
        "debias-tuning", "The settings of the debiasing benchmark, chosen on other seeds", "debias_tuning", chooses=True
    ),
    Experiment("tree-tuning", "The settings of boosted trees, chosen on other seeds", "tree_tuning", chooses=True),
    Experiment(
        "lattice",
        "Several monotone inputs: a lattice against boosters (section 6)",
        "lattice",
        data="simulated, and KuaiRand",
    ),
    Experiment("segments", "A million advertisers end to end (section 6)", "segments"),
    Experiment("off-policy", "Off-policy evaluation with learned propensities (section 6)", "off_policy"),
    Experiment("position-prediction", "Position Action Prediction: pooling over positions", "position_prediction"),
    Experiment("kuairand", "KuaiRand by tab: calibrators on real clicks", "kuairand_calibration", data="KuaiRand"),
    Experiment("kuairand-tasks", "KuaiRand by tab, eight tasks at once", "kuairand_tasks", data="KuaiRand"),
    Experiment(
        "kuairand-fields", "KuaiRand with all its fields: curves, trees, a network", "kuairand_fields", data="KuaiRand"
    ),
    Experiment("real-tasks", "Calibrators on many real tasks", "real_tasks", data="five public sources"),
    Experiment(
        "mslr-clicks",
        "Graded documents (MSLR) with simulated clicks",
        "mslr_clicks",
        data="graded documents, simulated clicks",
    ),
    Experiment(
        "open-bandit",
        "Off-policy evaluation on Open Bandit: random and logged policy",
        "open_bandit",
        data="Open Bandit",
    ),
    Experiment(
        "ads-calibration",
        "The ads bench: Avazu, AliCCP, Criteo or KuaiRand by field",
        "ads_calibration",
        data="KuaiRand",
    ),
)


def find(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names; for ``["all"]`` every one but those that choose settings for others.

    >>> [one.name for one in EXPERIMENTS if one not in find(["all"])]
    ['debias-tuning', 'tree-tuning']
    >>> find(["nothing"])
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: experiment: expected one of all, ..., got 'nothing'; choose from the list
    """
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    if list(names) == ["all"]:
        return [experiment for experiment in EXPERIMENTS if not experiment.chooses]
    for name in names:
        if name not in known:
            raise InputError(f"experiment: expected one of all, {', '.join(known)}, got {name!r}; choose from the list")
    if not names:
        raise InputError("experiment: expected a name or all, got none; choose from the list")
    return [known[name] for name in dict.fromkeys(names)]
