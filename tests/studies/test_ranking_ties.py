"""What steps cost in ranking: the verdict goes either way, and what is true by construction is no part of it."""

from __future__ import annotations

from research import ranking_ties
from research.result import Finished

AUC = {ranking_ties.RAW: 0.8, ranking_ties.EXACT: 0.8, ranking_ties.RELU: 0.799}


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
    stairs = {ranking_ties.STAIRS: 0.1, ranking_ties.SKLEARN: 0.1, ranking_ties.RELU: 0.01}
    found = ranking_ties.summarise(done(AUC, stairs))
    assert found.held == "held"
    assert {round(part.estimate.value, 3) for part in found.parts if part.unit == "%"} == {10.0, -9.0}
    smooth = ranking_ties.summarise(done(dict.fromkeys(ranking_ties.METHODS, 0.8), {}))
    assert {part.held for part in smooth.parts} == {"did not hold"}


def test_no_part_restates_another_and_the_note_has_what_is_so_by_construction():
    found = ranking_ties.summarise(done(AUC, {}))
    assert len(found.parts) == 5 * len(ranking_ties.SIZES)
    assert not [part.says for part in found.parts if part.says.startswith(ranking_ties.EXACT)]
    assert "0 in AUC, 0 in the share of tied pairs" in found.note
    apart = ranking_ties.summarise(done(AUC | {ranking_ties.EXACT: 0.798}, {}))
    assert "0.002 in AUC, 0 in" in apart.note
