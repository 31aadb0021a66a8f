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
    assert "The head as listed adds 3744% (small), 77% (medium), 4.5% (large), so about 5% beside large;" in note


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
