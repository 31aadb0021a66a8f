"""Parts of claims that no study has by itself: worked out from the committed numbers of one or more of them.

Each function takes what the studies wrote and gives parts, as many as the numbers allow: none where a study was not
run. Differences between two studies are paired by seed where both wrote the figure of each seed of the same logs; other
differences are not, and their intervals come from those of either mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from isolayer.errors import need
from research.claim import Documents
from research.result import Estimate, Part, estimate

BENCHMARK, VARIANTS, LATTICE = "debias-benchmark", "debias-variants", "lattice"
OFFLINE, GRADED = "offline-debiasing", "mslr-clicks"
NDCG, AUC, RELEVANCE = "nDCG@10", "delta AUC", "nDCG@10, true relevance"
RISE = "AUC over that of the next lower rate"
TASKS = ("click", "like")  # of table 3
SOME = 0.01  # share of pairs in the wrong order that counts as some
CLOSED = 0.92  # share of the gap that the benchmark asks of our dual head
FIRES = "the warning fires"  # as the benchmark's parts about informed loggers begin
JOINT, PARALLEL = "dual head, joint alpha .25", "two parallel heads"  # as debias-variants calls them
PAPERS = {JOINT: "the paper's joint loss", PARALLEL: "the paper's two parallel heads"}


def joint_closes(documents: Documents) -> list[Part]:
    """How far the paper's loss closes the gap that our dual head is judged by."""
    return list(_closes(documents, JOINT))


def parallel_closes(documents: Documents) -> list[Part]:
    """The same of the paper's wiring."""
    return list(_closes(documents, PARALLEL))


def papers_debias(documents: Documents) -> list[Part]:
    """Both, and whether the paper's loss ranks above Position Dropout."""
    return [
        *_closes(documents, JOINT),
        *_closes(documents, PARALLEL),
        *_above(documents, "position dropout"),
    ]


def joint_above_propensities(documents: Documents) -> list[Part]:
    """Whether the paper's loss, which needs no propensities, ranks above methods that have them."""
    return [part for method in ("IPS, harvested", "IPS, EM") for part in _above(documents, method)]


def joint_above_position_as_feature(documents: Documents) -> list[Part]:
    """Whether the paper's loss ranks above position as a feature."""
    return list(_above(documents, "position as feature"))


def unconstrained_invert(documents: Documents) -> list[Part]:
    """Whether learners without the constraint put pairs in the wrong order, where the truth has an order."""
    found = _rows(documents, LATTICE, "violations, share of pairs")
    return [
        Part(
            f"{learner} without the constraint puts {SOME:.0%} of pairs or more in the wrong order ({world})",
            Estimate(**one),
            above=SOME,
        )
        for world in _worlds(found)
        if world.startswith("simulated")
        for name, learner in (("lattice, unconstrained", "a lattice"), ("booster", "a booster"))
        if (one := found.get(f"{world}: {name}"))
    ]


def rates(documents: Documents) -> str:
    """The best rate of dropout on the log and by relevance, and at how many steps of the grid AUC rises."""
    log, truth = (_at_rate(documents, metric, "click") for metric in (AUC, RELEVANCE))
    if not log or not truth:
        return ""
    best, nearest = (max(found, key=lambda rate: found[rate]["value"]) for found in (log, truth))
    told = f"Best rate for Click: {best} by AUC on the log, {nearest} by nDCG against true relevance."
    steps = {task: _at_rate(documents, RISE, task) for task in TASKS}
    rises = [
        f"{sum(step['lower'] > 0 for step in found.values())} of {len(found)} steps from one rate to the next for "
        f"{task.capitalize()}"
        for task, found in steps.items()
        if found
    ]
    return f"{told} AUC rises beyond chance at {' and '.join(rises)}." if rises else told


def dropout_lifts(documents: Documents) -> str:
    """Which lifts of Position Dropout are above 0 beyond chance, over all seeds of the A/B test."""
    lifts = {
        (arm.removeprefix("Position Dropout "), metric): mean
        for metric in ("clicks", "likes", "long dwells")
        for arm, mean in _rows(documents, "ab-test", f"{metric}, lift").items()
        if arm.startswith("Position Dropout ")
    }
    if not lifts:
        return ""
    above = [
        f"{metric} at {rate} by {mean['value']:.2f}%" for (rate, metric), mean in lifts.items() if mean["lower"] > 0
    ]
    told = f"Above 0 beyond chance are {len(above)} of {len(lifts)} lifts"
    return f"{told}: {', '.join(above)}." if above else f"{told}."


def position_as_feature_closes(documents: Documents) -> str:
    """How much of the gap position as a feature closes."""
    found = _rows(documents, BENCHMARK, "share of the gap closed")
    closed = [mean["value"] for name, mean in found.items() if name.endswith(": position as feature")]
    if not closed:
        return ""
    share = f"{min(closed):.0%} to {max(closed):.0%} of the gap to unbiased labels"
    return f"Position as a feature closes {share} in {len(closed)} worlds."


def shares(documents: Documents) -> str:
    """How much of the gap each form of the head closes, in the worlds that all forms were tried in."""
    told = []
    for method, name in PAPERS.items():
        closed = [(_world(part), part.estimate.value) for part in _closes(documents, method)]
        if closed:
            told.append(f"{name} {', '.join(f'{share:.1%} ({world})' for world, share in closed)}")
    if not told:
        return ""
    found = _rows(documents, BENCHMARK, "share of the gap closed")
    dropout = [mean["value"] for name, mean in found.items() if name.endswith(": position dropout")]
    if dropout:
        told.append(f"Position Dropout {min(dropout):.0%} to {max(dropout):.0%} in {len(dropout)} worlds")
    return f"Share of the gap to unbiased labels that is closed: {'; '.join(told)}."


def weights(documents: Documents) -> str:
    """How far each weight of the joint loss is behind the best of all at most, over the worlds, in hindsight."""
    found = _rows(documents, "advised-alpha", NDCG)
    worlds = _worlds(found)
    behind = {
        name: max(_best_of(found, world) - found[f"{world}: {name}"]["value"] for world in worlds)
        for name in dict.fromkeys(row.partition(": ")[2] for row in found)
        if name.startswith("joint alpha ")
    }
    if not behind:
        return ""
    each = ", ".join(f"{most:.4f} with {name.removeprefix('joint ')}" for name, most in behind.items())
    return f"In {len(worlds)} worlds the joint loss is behind the best weight tried by at most (mean nDCG): {each}."


def _best_of(found: dict[str, dict[str, Any]], world: str) -> float:
    return max(float(mean["value"]) for name, mean in found.items() if name.startswith(f"{world}: "))


def informed(documents: Documents) -> str:
    """What happens under a logger that knows relevance that the features lack."""
    if BENCHMARK not in documents:
        return ""
    found, told = _rows(documents, BENCHMARK, NDCG), []
    for part in documents[BENCHMARK]["parts"]:
        if part["says"].startswith(FIRES):
            world = part["says"].partition(" (")[2].removesuffix(")")
            fired = f"the warning fires under {part['value'] * part['seeds']:.0f} of {part['seeds']} seeds"
            naive, dual = (found.get(f"{world}: {method}") for method in ("naive", "dual head"))
            ranks = ""
            if naive and dual:
                side = "below" if dual["value"] < naive["value"] else "not below"
                ranks = f" and the dual head ranks {side} naive ({dual['value']:.4f} against {naive['value']:.4f})"
            told.append(f"{fired}{ranks} ({world})")
    if not told:
        return ""
    return f"Under a logger that already knows relevance, position cannot be told from it: {'; '.join(told)}."


def graded(documents: Documents) -> str:
    """How often the head ranks above dropout on graded documents."""
    parts = documents.get(GRADED, {"parts": ()})["parts"]
    begins = "the detached anchor ranks better than Position Dropout"
    own = [part for part in parts if part["says"].startswith(begins)]
    if not own:
        return ""
    held, below = sum(part["held"] == "held" for part in own), sum(part["value"] < 0 for part in own)
    return (
        f"On graded documents the head ranks above dropout beyond chance in {held} of {len(own)} comparisons, and its "
        f"mean is below dropout's in {below or 'none'} of them."
    )


def pooled(documents: Documents) -> str:
    """How many worlds each way to pool over predicted positions lowers the log loss in, against the served curve."""
    found, told = _rows(documents, "position-prediction", "log loss"), []
    for given, says in (("x", "from the features"), ("r", "from relevance alone")):
        for pool, verb in (("embeddings", "pooling embeddings"), ("probabilities", "averaging probabilities")):
            gaps = [
                found[f"{world}: {pool}, P(c | {given})"]["value"] - found[f"{world}: served curve"]["value"]
                for world in _worlds(found)
            ]
            if gaps:
                lower, ends = sum(gap < 0 for gap in gaps), f"{min(gaps):+.4f} to {max(gaps):+.4f}"
                told.append(f"{verb} by positions predicted {says} lowers it in {lower} of {len(gaps)} worlds ({ends})")
    return f"Log loss against the served curve: {'; '.join(told)}." if told else ""


def missed(documents: Documents) -> str:
    """Where learned curves miss 5%: their bias, and that of the true propensities."""
    errors, biases = (_rows(documents, "off-policy", metric) for metric in ("mean relative error, %", "bias, %"))
    told = []
    for name, error in errors.items():
        world, _, method = name.partition(": ")
        if method == "curves, learned" and error["value"] > 5:
            true = f"{world}: true propensities"
            told.append(
                f"{world}: learned curves err by {error['value']:.1f}% with a bias of {_signed(biases[name])}, true "
                f"propensities by {errors[true]['value']:.1f}% with a bias of {_signed(biases[true])}"
            )
    return f"Where learned curves miss 5%: {'; '.join(told)}." if told else ""


def events(documents: Documents) -> str:
    """How many clicks the value rests on that is to be told from another policy's log."""
    found = _rows(documents, "open-bandit", "events")
    if not found:
        return ""
    clicks = next(iter(found.values()))["value"]
    return (
        f"The rate that is to be told rests on {clicks:.0f} clicks of the other policy's own log, which leaves it a "
        f"relative deviation of {clicks**-0.5:.2f}."
    )


def drifts(documents: Documents) -> str:
    """How the joint loss ranks beside inverse propensities, and what old ones cost, where bias grows and fades."""
    told = []
    for part in documents.get("incremental", {"parts": ()})["parts"]:
        drift, _, says = part["says"].partition(": ")
        joint = says.removeprefix("with the joint loss the isotonic head ranks ").partition(" (")[0]
        rival = joint.removeprefix("better than ").removeprefix("as well as ")
        if rival.startswith("IPS ") and joint != says.partition(" (")[0]:
            told.append(f"{_beside(part)} {rival} where {drift}")
    return f"With the joint loss nDCG is {', '.join(told)}." if told else ""


def _beside(part: dict[str, Any]) -> str:
    sure = part["lower"] > 0 or part["upper"] < 0
    side = "below" if part["value"] < 0 else "above"
    return f"{abs(part['value']):.4f} {side}{'' if sure else ', within chance,'}"


def behind_others(documents: Documents) -> str:
    """How often a method of the benchmark ranks above our dual head, and how often beyond chance."""
    own = [part for part in documents.get(BENCHMARK, {"parts": ()})["parts"] if part["says"].startswith("above ")]
    if not own:
        return ""
    above = [part for part in own if part["value"] < 0]
    sure = sum(part["upper"] < 0 for part in above)
    return (
        f"Of {len(own)} comparisons with one method in one world, the other's mean is above the head's in "
        f"{len(above)}, beyond chance in {sure or 'none'}."
    )


def _signed(mean: dict[str, Any]) -> str:
    return f"{mean['value']:+.1f}% [{mean['lower']:+.1f}, {mean['upper']:+.1f}]"


def graded_and_informed(documents: Documents) -> str:
    """Graded documents, and loggers that know relevance."""
    return " ".join(filter(None, (graded(documents), informed(documents))))


def _closes(documents: Documents, method: str) -> Iterator[Part]:
    # paired by seed; where seeds are not written, the gap that the gain is divided by is taken as given
    ours, field = _rows(documents, VARIANTS, NDCG), _rows(documents, BENCHMARK, NDCG)
    begins = {JOINT: "a joint loss ranks better than naive (", PARALLEL: "two parallel heads rank better than naive ("}
    for part in documents.get(VARIANTS, {"parts": ()})["parts"]:
        if part["says"].startswith(begins[method]):
            world = part["says"].removeprefix(begins[method]).removesuffix(")")
            naive, best = ours.get(f"{world}: naive"), field.get(f"{world}: unbiased labels")
            if naive and best:
                gap = best["value"] - naive["value"]
                given = Estimate(part["value"] / gap, part["lower"] / gap, part["upper"] / gap, part["seeds"])
                share = _share(documents, world, method) or given
                verb = "close" if method == PARALLEL else "closes"
                yield Part(f"{PAPERS[method]} {verb} at least {CLOSED:.0%} of the gap ({world})", share, above=CLOSED)


def _above(documents: Documents, method: str) -> Iterator[Part]:
    ours, field = _rows(documents, VARIANTS, NDCG), _rows(documents, BENCHMARK, NDCG)
    for world in _worlds(ours):
        one, other = ours.get(f"{world}: {JOINT}"), field.get(f"{world}: {method}")
        if one and other:
            gain = _paired(documents, f"{world}: {JOINT}", f"{world}: {method}") or difference(one, other)
            yield Part(f"{PAPERS[JOINT]} ranks above {method} ({world})", gain, above=0.0)


def _share(documents: Documents, world: str, method: str) -> Estimate | None:
    """The share of the gap from naive to unbiased labels that one of the variants closes, seed by seed."""
    own, naive = (_by_seed(documents, VARIANTS, f"{world}: {name}") for name in (method, "naive"))
    best = _by_seed(documents, BENCHMARK, f"{world}: unbiased labels")
    shares = [(one - low) / (high - low) for one, low, high in zip(own, naive, best, strict=False)]
    return estimate(shares) if shares else None


def _paired(documents: Documents, variant: str, method: str) -> Estimate | None:
    """One of the variants minus a method of the benchmark, seed by seed."""
    own, field = _by_seed(documents, VARIANTS, variant), _by_seed(documents, BENCHMARK, method)
    gains = [one - other for one, other in zip(own, field, strict=False)]
    return estimate(gains) if gains else None


def _by_seed(documents: Documents, study: str, name: str) -> list[float]:
    """What a row comes to under each seed, where that is written: both studies begin at the same one and share logs."""
    found: list[float] = documents[study].get("series", {}).get("by seed", {}).get(name, [])
    return found


def difference(one: dict[str, Any], other: dict[str, Any], *, level: float = 0.95) -> Estimate:
    """One mean minus another of separate runs, with Welch's interval, from their own 95% intervals.

    >>> wide = {"value": 1.0, "lower": 0.5, "upper": 1.5, "seeds": 5}
    >>> found = difference(wide, wide)
    >>> found.value, round(found.upper, 2)
    (0.0, 0.59)
    """
    parts = [(_deviation(mean) ** 2 / mean["seeds"], mean["seeds"] - 1) for mean in (one, other)]
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / count for part, count in parts)
    half = float(need("scipy.special").stdtrit(freedom, 0.5 + level / 2)) * math.sqrt(variance)
    value = one["value"] - other["value"]
    return Estimate(value, value - half, value + half, min(one["seeds"], other["seeds"]))


def _deviation(mean: dict[str, Any]) -> float:
    """The deviation over seeds that a t-interval of 95% came from."""
    reach = float(need("scipy.special").stdtrit(mean["seeds"] - 1, 0.975))
    return float(mean["upper"] - mean["lower"]) / 2 / reach * math.sqrt(mean["seeds"])


def _rows(documents: Documents, study: str, metric: str) -> dict[str, dict[str, Any]]:
    """The means of one metric of a study, by the names of its rows."""
    rows = documents.get(study, {"rows": ()})["rows"]
    return {row["name"]: row["ours"] for row in rows if row["metric"] == metric}


def _worlds(rows: Sequence[str] | dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(name.split(": ")[0] for name in rows))


def _world(part: Part) -> str:
    return part.says.rpartition("(")[2].removesuffix(")").removesuffix(", spurious")


def _at_rate(documents: Documents, metric: str, task: str) -> dict[str, dict[str, Any]]:
    """What Position Dropout comes to on a log at each rate, by the rate as it is printed."""
    rows = _rows(documents, OFFLINE, metric)
    found = {name.removesuffix(f", {task}"): mean for name, mean in rows.items() if name.endswith(f", {task}")}
    return {name.removeprefix("dropout "): mean for name, mean in found.items() if name.startswith("dropout ")}
