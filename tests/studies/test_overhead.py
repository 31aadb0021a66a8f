"""The cost of the head: verdicts either way, and heads that agree before they are timed."""

from __future__ import annotations

import pytest
import torch
from made_up_numbers import lost, outcome, with_setting

from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.frozen import FrozenCurves
from research import overhead


def test_overhead_verdict():
    good = {"as listed %": 5.0, "frozen %": 0.7, "loss": 0.05}
    assert outcome(overhead, good).held == "held"
    assert len(lost(outcome(overhead, good | {"as listed %": 60.0}))) == len(overhead.NETWORKS)
    loses = outcome(overhead, {f"worst loss, {overhead.BY_FEATURE}": 0.3} | good)
    assert lost(loses) == [f"distilling loses less than 0.1% AUC on the worst task ({overhead.BY_FEATURE})"]
    assert lost(outcome(overhead, good | {"frozen %": 2.0})) == [
        f"the frozen head costs less than 1% of CPU ({size} network)" for size in overhead.NETWORKS
    ]
    note = with_setting(overhead, {"small": 3743.7, "medium": 76.8, "large": 4.48}).note
    assert "The head as listed adds 3744% (small), 77% (medium), 4.5% (large), so about 5% beside large." in note


def test_the_note_says_what_either_student_costs_and_which_keeps_auc():
    times = {f"distilled, {overhead.BY_FEATURE} %": 11.2, f"distilled, {overhead.BY_COMBINATION} %": 0.5}
    losses = {f"mean loss, {overhead.BY_FEATURE}": 0.37, f"worst loss, {overhead.BY_FEATURE}": 2.09}
    result = outcome(overhead, times | losses | {"loss": 0.02})
    assert (
        "Distilled into a student with shifts by position and device, the head adds 11% (small), 11% (medium), 11% "
        "(large) and loses 0.37% of AUC on average and 2.1% on the worst task. Distilled into a student with a shift "
        "per combination, the head adds 0.50% (small), 0.50% (medium), 0.50% (large) and loses 0.02% of AUC on average "
        "and 0.02% on the worst task. AUC is kept, with less than 0.1% lost on average and on the worst task, by the "
        "student with a shift per combination alone."
    ) in result.note
    assert outcome(overhead, times | {"loss": 0.3}).note.endswith("by neither student.")
    assert outcome(overhead, times | {"loss": 0.02}).note.endswith("by both students.")
    shown = {row.name for row in result.rows}
    assert {f"small network, head distilled, {name}" for name in overhead.STUDENTS} <= shown
    assert {f"distilled head, {name}" for name in overhead.STUDENTS} <= shown
    assert {f"distilled, {name}" for name in overhead.STUDENTS} <= set(result.series["head"])


def test_the_note_says_that_the_listing_is_read_and_not_run_as_printed():
    note = outcome(overhead, {"as listed %": 5.0}).note
    assert note.count("does not parse as printed") == 1
    assert "what is timed is our reading of it" in note


def test_the_chart_shows_names_of_ways_in_full():
    chart = overhead.chart(dict(outcome(overhead, {}).series)).to_dict()
    axis = chart["encoding"]["y"]["axis"]
    assert axis["labelLimit"] > 7 * max(map(len, overhead.WAYS))
    assert chart["height"] >= 18 * len(overhead.WAYS)


def test_every_way_to_keep_the_head_gives_the_same_logits():
    torch.manual_seed(0)
    layer = ContextIsotonicLayer(overhead.CONTEXTS, units=3)
    with torch.no_grad():
        layer.base.weight.uniform_(0, 2)
        layer.base.bias.normal_()
    context = {name: torch.randint(0, size, (200,)) for name, size in overhead.CONTEXTS.items()}
    logit = torch.randn(200, 3) * 6
    listed, trained = overhead.ListedHead(layer)(logit, context), layer(logit, context)
    torch.testing.assert_close(listed, trained, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        for table in layer.tables:
            for parameter in table.parameters():
                parameter.normal_()
        torch.testing.assert_close(FrozenCurves.from_layer(layer)(logit, context), layer(logit, context))


def test_the_head_that_is_distilled_is_as_large_as_those_that_are_timed(monkeypatch):
    given = {}

    class Stopped(Exception):
        pass

    def distill(curves, *rest, **options):
        given["curves"] = curves
        raise Stopped

    monkeypatch.setattr(overhead, "distill", distill)
    monkeypatch.setattr(overhead, "train", lambda model, log, **options: model)
    with pytest.raises(Stopped):
        overhead.distilled(0, quick=True)
    timed = ContextIsotonicLayer(overhead.CONTEXTS, units=len(overhead.TWELVE))
    assert given["curves"].grid.buckets == timed.grid.buckets == 126
    assert given["curves"].mode == "cross"


def test_a_student_of_combinations_is_told_the_same_contexts():
    torch.manual_seed(0)
    layer = ContextIsotonicLayer(overhead.CONTEXTS, units=2, mode="cross")
    with torch.no_grad():
        for table in layer.tables:
            for parameter in table.parameters():
                parameter.normal_()
    context = {name: torch.randint(0, size, (200,)) for name, size in overhead.CONTEXTS.items()}
    logit, both = torch.randn(200, 2), overhead.combined(context)
    assert int(both["combination"].max()) < overhead.STUDENTS[overhead.BY_COMBINATION]["combination"]
    torch.testing.assert_close(overhead._of_combination(layer, logit, both), layer(logit, context))


def test_overheads_are_measured_against_the_network():
    numbers = overhead.overheads((4, 8, 8), seconds=0.01)
    for way in overhead.WAYS:
        assert numbers[f"{way} %"] == pytest.approx(100 * numbers[f"{way} ms"] / numbers["alone ms"])
