"""What steps cost in ranking: the verdict goes either way, and what is true by construction is no part of it."""

from __future__ import annotations

from research import ranking_ties
from research.result import Finished

AUC = {ranking_ties.RAW: 0.8, ranking_ties.EXACT: 0.8, ranking_ties.RELU: 0.7996}


def done(auc, ties):
    return [
        Finished(
            unit,
            {f"{name} auc": auc.get(name, 0.79) + 1e-7 * unit.seed for name in ranking_ties.METHODS}
            | {f"{name} ties": ties.get(name, 0.0) + 1e-7 * unit.seed for name in ranking_ties.METHODS},
        )
        for unit in ranking_ties.units(True, 2)
    ]


def test_the_verdict_goes_either_way():
    stairs = {ranking_ties.STAIRS: 0.1, ranking_ties.SKLEARN: 0.1, ranking_ties.RELU: 0.0005}
    found = ranking_ties.summarise(done(AUC, stairs))
    assert found.held == "held"
    assert {round(part.estimate.value, 3) for part in found.parts} == {10.0, -1.25, 0.05, -0.05}
    smooth = ranking_ties.summarise(done(dict.fromkeys(ranking_ties.METHODS, 0.8), {}))
    assert {part.says for part in smooth.parts if part.held != "held"} == {
        part.says for part in smooth.parts if not part.says.startswith(ranking_ties.RELU)
    }
    coarse = ranking_ties.summarise(done(AUC | {ranking_ties.RELU: 0.79}, stairs | {ranking_ties.RELU: 0.1}))
    assert [part.says for part in coarse.parts if part.held != "held"] == [
        f"layer, ReLU by gradient, {says} ({size})"
        for size in ranking_ties.SIZES
        for says in ("ties fewer than 0.1% of pairs", "costs less than 0.1% of AUC")
    ]


def test_a_cost_in_auc_that_the_paper_calls_negligible_is_none():
    """Below 0.1% of AUC (section 5.7); that it is above nothing holds by construction."""
    slight = AUC | {ranking_ties.STAIRS: 0.7995, ranking_ties.SKLEARN: 0.7995}
    found = ranking_ties.summarise(done(slight, {ranking_ties.STAIRS: 0.1}))
    assert [part.says for part in found.parts if part.held != "held"] == [
        f"{says} more than 0.1% of AUC ({size})"
        for size in ranking_ties.SIZES
        for says in ("isotonic regression's steps cost", "as scikit-learn predicts, isotonic regression costs")
    ]
    assert "can only tie pairs, which costs expected AUC by construction" in found.note


def test_no_part_restates_another_and_the_note_has_what_is_so_by_construction():
    found = ranking_ties.summarise(done(AUC, {}))
    assert not [part.says for part in found.parts if part.says.startswith(ranking_ties.EXACT)]
    assert "0 in AUC, 0 in the share of tied pairs" in found.note
    apart = ranking_ties.summarise(done(AUC | {ranking_ties.EXACT: 0.798}, {}))
    assert "0.002 in AUC, 0 in" in apart.note
    steps = ranking_ties.summarise(done(AUC | {ranking_ties.STAIRS: 0.7}, {ranking_ties.STAIRS: 0.3}))
    changed = [one.says for one, other in zip(found.parts, steps.parts, strict=True) if one.estimate != other.estimate]
    assert all(says.startswith("isotonic regression's steps") for says in changed)  # no other part is about the steps
