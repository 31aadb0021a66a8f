"""The page of claims: how parts come to an outcome, what a row shows, what is told from several studies."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from research import claims_compared as compared
from research import page, registry
from research.claim import HELD, MIXED, NOT, PARTLY, Claim, chosen, figure, p_value
from research.claims import ANEW, CLAIMS, DIRECTION, NO_DECISION, NOT_RUN, claims_page, outcome, row
from research.result import UNDECIDED, VERDICTS, Part, certain, estimate

DOCS = Path(__file__).parents[2] / "docs"


def part(says, held, lower=1.0, upper=1.0, **more):
    """A part that must be above 0."""
    middle = (lower + upper) / 2
    return {"says": says, "held": held, "value": middle, "lower": lower, "upper": upper, "must": "above 0", **more}


def test_the_papers_claims_name_studies_and_explain_only_outcomes_that_were_explained():
    assert {study for claim in CLAIMS for study in claim.studies} == {one.name for one in registry.EXPERIMENTS}
    assert all(set(one.why) <= {*VERDICTS, PARTLY, MIXED, UNDECIDED} for one in CLAIMS)


RISES = Claim("It rises", "table 9", "made-up", ("a", "b"), "Somewhere.", {PARTLY: "Because."})
AGAINST, OPEN = part("b rises", NOT, -1.0, -1.0), part("b rises", NOT, -3.0, 1.0, seeds=5)


@pytest.mark.parametrize(
    ("second", "came_out", "figures", "why"),
    [
        (part("b rises", HELD), "**held** (all 2 parts held)", "", ANEW),
        (
            part("b rises", "held in direction", -1.0, 3.0),
            "**held in direction** (1 of 2 parts held, 1 in direction)",
            "<br>held in direction: b rises: 1 [-1, 3], must be above 0",
            DIRECTION.format(some=1, all=2),
        ),
        (
            OPEN,
            "**held in part** (1 of 2 parts held, 1 not shown)",
            "<br>not shown: b rises: -1 [-3, 1], must be above 0",
            "Because.",
        ),
        (
            AGAINST,
            "**mixed** (1 of 2 parts held, 1 contradicted)",
            "<br>contradicted: b rises: -1, must be above 0",
            "Because.",
        ),
    ],
)
def test_a_row_tells_how_parts_came_out_and_shows_what_speaks_against_the_claim(second, came_out, figures, why):
    parts = [part("a rises", HELD), second, part("c rises", "held in direction")]
    said = row(RISES, {"made-up": {"parts": parts}})
    assert said.endswith(f"| {came_out} | held: a rises: 1, must be above 0{figures} | {why} |")


def test_a_claim_is_named_by_its_first_part_also_where_that_one_failed():
    alone = row(replace(RISES, parts=("b",)), {"made-up": {"parts": [OPEN]}})
    assert alone.endswith(f"| **undecided** | not shown: b rises: -1 [-3, 1], must be above 0 | {NO_DECISION} |")
    assert row(replace(RISES, parts=("b",)), {"made-up": {"parts": [AGAINST]}}).endswith(
        f"| **did not hold** | contradicted: b rises: -1, must be above 0 | {ANEW} |"
    )


def test_a_claim_whose_study_was_not_run_says_so():
    assert row(RISES, {}).endswith(f"| **{NOT_RUN}** |  |  |")
    assert row(RISES, {"made-up": {"parts": [part("c rises", HELD)]}}).endswith(f"| **{NOT_RUN}** |  |  |")


def test_one_part_refutes_what_is_said_of_all_if_it_is_beyond_the_chance_of_so_many_parts():
    universal = replace(RISES, universal=True)

    def came_out(against, others=1):
        held = [part(f"a {number}", HELD) for number in range(others)]
        return outcome([*held, against], universal=universal.universal)

    just = part("b rises", NOT, -2.1, -0.1, seeds=100)  # p is .03 by itself
    assert came_out(just, others=0) == NOT
    assert came_out(just) == MIXED  # as likely as one in 17 where all of 2 truths lie on the bound
    assert came_out(part("b rises", NOT, -2.1, -0.6, seeds=100)) == NOT
    assert came_out(part("b rises", NOT, -2.1, -0.6, seeds=100), others=1000) == MIXED
    assert came_out(OPEN) == PARTLY
    said = row(universal, {"made-up": {"parts": [part("a rises", HELD), AGAINST]}})
    assert "**did not hold** (1 of 2 parts held, 1 contradicted)" in said
    assert said.endswith("| Because. |")  # what explains why some did not hold serves here too


def test_a_claim_about_all_cases_is_one_that_a_single_part_refutes():
    says_all = re.compile(r"\b(any|every|best|never|always|impossible|whatever|free of|no propensities)\b|^No ")
    assert [claim.says for claim in CLAIMS if says_all.search(claim.says) and not claim.universal] == []


def test_what_the_wider_interval_of_a_universal_claim_leaves_open_does_not_refute_it_either():
    just = part("b rises", NOT, -2.1, -0.1, seeds=100)  # p is .03 by itself
    open_ones = [part(f"a {number}", NOT, -3.0, 1.0, seeds=100) for number in range(9)]
    assert outcome([*open_ones, just]) == NOT
    assert outcome([*open_ones, just], universal=True) == UNDECIDED


def test_a_p_value_agrees_with_that_of_a_t_test():
    values = np.array([0.3, -0.4, -1.1, -0.6, -0.2, -0.9])
    found = {**estimate(values)._asdict(), "must": "above 0.1"}
    assert p_value(found) == pytest.approx(stats.ttest_1samp(values, 0.1).pvalue)


def test_every_study_that_contradicts_a_claim_has_a_figure_in_its_row():
    against = [part(f"b{number}", NOT, -1.0 - number, -1.0, seeds=9) for number in range(6)]
    documents = {"one": {"parts": [part("a", HELD), *against]}, "two": {"parts": [part("c", NOT, -1.0, -1.0)]}}
    claim = Claim("It rises", "table 9", "one", ("a", "b"), "Somewhere.", also={"two": ("c",)})
    said = row(claim, documents)
    assert "(1 of 8 parts held, 7 contradicted)" in said
    figures = said.split(" | ")[-2]
    assert figures == (
        "held: a: 1, must be above 0<br>contradicted: b0: -1, must be above 0<br>contradicted: c: -1, must be above 0"
        "<details><summary>5 more did not hold</summary>"
        + "<br>".join(f"contradicted: {one['says']}: {figure(one)}, must be above 0" for one in against[1:])
        + "</details>"
    )
    assert "[two](studies/two.md)" in said
    computed = Claim("It falls", "table 9", "one", ("a",), "", compared=lambda _: [Part("d (x)", certain(-1), above=0)])
    assert "<br>contradicted: d (x): -1, must be above 0 |" in row(computed, documents)


def committed():
    """What each study has written, by name."""
    paths = (DOCS / page.REPRODUCED / f"{one.name}.json" for one in registry.EXPERIMENTS)
    return {path.stem: json.loads(path.read_text()) for path in paths if path.exists()}


def test_the_page_counts_its_claims_and_parts():
    documents = DOCS / page.REPRODUCED
    text = claims_page(documents)
    rows = [line for line in text.partition("## What we add")[0].splitlines() if line.count(" | ") == 4]
    tested = [line for line in rows if "| our world |" not in line]
    assert f"Of {len(tested)} claims that a study tests" in text
    listed = text.partition("## Not tested")[2].partition("## How to read it")[0]
    assert f"; {listed.count(chr(10) + '- ')} more are" in text


def test_no_committed_part_that_did_not_hold_is_left_out_of_the_claims():
    documents = committed()
    shown = {(part["from"], part["says"]) for claim in CLAIMS for part in claim.evidence(documents)}
    left = {
        part["says"]
        for name, document in documents.items()
        for part in document["parts"]
        if part["held"] == "did not hold" and (name, part["says"]) not in shown
    }
    assert all(says.startswith("the warning fires") for says in left)  # no claim of the paper: told in words


def test_claims_find_all_that_they_name_in_the_committed_numbers():
    documents = committed()
    named = [
        (study, one)
        for claim in CLAIMS
        for study, parts in ((claim.study, claim.parts), *claim.also.items())
        for one in parts
    ]
    assert [(study, one) for study, one in named if not chosen([one], documents[study]["parts"])] == []
    assert [claim.says for claim in CLAIMS if claim.compared and not claim.compared(documents)] == []


def test_comparisons_between_studies_are_of_their_numbers():
    def mean(value, half, seeds=10):
        return {"value": value, "lower": value - half, "upper": value + half, "seeds": seeds}

    def rows(metric, **means):
        return [{"name": f"W, spurious: {name}", "metric": metric, "ours": one} for name, one in means.items()]

    joint = {"dual head, joint alpha .25": mean(0.9, 0.01), "naive": mean(0.8, 0.01)}
    gain = {"says": "a joint loss ranks better than naive (W, spurious)", **mean(0.1, 0.02)}
    benchmark = {"unbiased labels": mean(1.0, 0.0), "position dropout": mean(0.95, 0.01), "naive": mean(0.8, 0.03)}
    documents = {
        "debias-variants": {"rows": rows("nDCG@10", **joint), "parts": [gain]},
        "debias-benchmark": {"rows": rows("nDCG@10", **benchmark), "parts": []},
    }
    closes, above = compared.papers_debias(documents)
    assert closes.estimate.value == pytest.approx(0.5)
    assert (closes.estimate.lower, closes.estimate.upper) == pytest.approx((0.4, 0.6))
    assert above.held == "did not hold"
    assert above.estimate.value == pytest.approx(-0.05)
    assert "50.0% (W)" in compared.shares(documents)
    fires = {"says": "the warning fires in more than half of the logs (W, spurious)", "value": 0.75, "seeds": 4}
    documents["debias-benchmark"] |= {"parts": [fires]}
    documents["debias-benchmark"]["rows"] += rows("nDCG@10", **{"dual head": mean(0.7, 0.01)})
    told = compared.informed(documents)
    assert "fires under 3 of 4 seeds and the dual head ranks below naive (0.7000 against 0.8000)" in told
    assert compared.papers_debias({}) == []
    assert compared.graded_and_informed({}) == compared.rates({}) == ""


def test_the_most_that_each_weight_costs_is_told_over_all_worlds():
    ranks = {"A": {"dual head": 0.9, "joint alpha 0.1": 0.88}, "B": {"dual head": 0.7, "joint alpha 0.1": 0.8}}
    rows = [
        {"name": f"{world}: {name}", "metric": "nDCG@10", "ours": {"value": value}}
        for world, found in ranks.items()
        for name, value in found.items()
    ]
    told = compared.weights({"advised-alpha": {"rows": rows}})
    assert "In 2 worlds" in told
    assert told.endswith(": 0.0200 with alpha 0.1.")
    assert compared.weights({}) == ""


def test_lifts_of_dropout_that_are_beyond_chance_are_told():
    def row(arm, lower, upper):
        mean = {"value": (lower + upper) / 2, "lower": lower, "upper": upper, "seeds": 3}
        return {"name": arm, "metric": "likes, lift", "ours": mean}

    rows = [row("Position Dropout 0.05", 0.5, 1.0), row("Position Dropout 0.5", -0.1, 0.3), row("inference head", 1, 2)]
    told = compared.dropout_lifts({"ab-test": {"rows": rows}})
    assert told == "Above 0 beyond chance are 1 of 2 lifts: likes at 0.05 by 0.75%."
    assert compared.dropout_lifts({}) == ""


def test_the_best_rate_of_dropout_is_told_with_the_steps_that_are_beyond_chance():
    def rows(metric, **means):
        return [
            {"name": f"dropout {rate}, {task}", "metric": metric, "ours": estimate(values)._asdict()}
            for task in ("click", "like")
            for rate, values in means.items()
        ]

    better, level = [1.0, 1.1, 0.9], [0.1, -0.1, 0.05]
    found = rows("delta AUC", **{"0.05": level, "0.15": better}) + rows(
        "nDCG@10, true relevance", **{"0.05": better, "0.15": level}
    )
    found += rows("AUC over that of the next lower rate", **{"0.10": better, "0.15": level})
    told = compared.rates({"offline-debiasing": {"rows": found}})
    assert "0.15 by AUC on the log, 0.05 by nDCG" in told
    assert "1 of 2 steps from one rate to the next for Click and 1 of 2 steps" in told


def test_differences_between_two_studies_of_the_same_logs_are_paired_by_seed():
    def study(name, values):
        mean = estimate(values)._asdict()
        rows = [{"name": f"W: {name}", "metric": "nDCG@10", "ours": mean}]
        return {"rows": rows, "parts": [], "series": {"by seed": {f"W: {name}": values}}}

    joint, dropout = [0.5, 0.7, 0.6], [0.45, 0.66, 0.54, 0.1]  # the last seed was run of one of them only
    documents = {
        "debias-variants": study("dual head, joint alpha .25", joint),
        "debias-benchmark": study("position dropout", dropout),
    }
    (paired,) = [part for part in compared.papers_debias(documents) if "dropout" in part.says]
    assert paired.estimate == pytest.approx(estimate([0.05, 0.04, 0.06]))
    assert paired.held == "held"
    for document in documents.values():
        document["series"] = {}
    (apart,) = [part for part in compared.papers_debias(documents) if "dropout" in part.says]
    assert apart.held == "held in direction"


def test_what_cannot_but_be_above_zero_has_a_bound_that_it_can_miss():
    def violations(share):
        name, mean = "simulated, rises: booster", {"value": share, "lower": share, "upper": share, "seeds": 4}
        rows = [{"name": name, "metric": "violations, share of pairs", "ours": mean}]
        return compared.unconstrained_invert({"lattice": {"rows": rows}})[0].held

    assert violations(0.02) == "held"
    assert violations(0.001) == "did not hold"


def test_sentences_on_the_claims_page_are_told_from_the_numbers():
    head = "with the joint loss the isotonic head ranks"
    parts = [
        {"says": f"bias grows: {head} better than IPS old", "value": -0.03, "lower": -0.04, "upper": -0.02},
        {"says": f"bias fades: {head} as well as IPS new (within .1)", "value": 0.01, "lower": -0.02, "upper": 0.04},
        {"says": "bias fades: IPS ranks worse", "value": 0.01, "lower": -0.02, "upper": 0.04},
    ]
    assert compared.drifts({"incremental": {"parts": parts}}) == (
        "With the joint loss nDCG is 0.0300 below IPS old where bias grows, 0.0100 above, within chance, IPS new where "
        "bias fades."
    )
    rows = [{"name": "clicks", "metric": "events", "ours": {"value": 25.0}}]
    assert "rests on 25 clicks of the other policy's own log" in compared.events({"open-bandit": {"rows": rows}})
    above = [{"says": f"above {name}", "value": value, "upper": value + 1} for name, value in (("a", -2), ("b", -0.5))]
    told = compared.behind_others({"debias-benchmark": {"parts": above}})
    assert "the other's mean is above the head's in 2, beyond chance in 1." in told
    assert compared.drifts({}) == compared.events({}) == compared.behind_others({}) == ""


def test_the_difference_of_two_means_has_the_interval_of_welch():
    rng = np.random.default_rng(0)
    one, other = rng.normal(1.0, 2.0, 12), rng.normal(0.0, 0.5, 7)
    found = compared.difference(estimate(one)._asdict(), estimate(other)._asdict())
    interval = stats.ttest_ind(one, other, equal_var=False).confidence_interval()
    assert (found.lower, found.upper) == pytest.approx((interval.low, interval.high))
