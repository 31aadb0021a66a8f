"""All fields of KuaiRand: verdicts either way, and a network that rises with the score."""

from __future__ import annotations

import numpy as np
import torch
from made_up_numbers import done, lost

from research import kuairand_fields


def test_fields_verdict_goes_either_way():
    def good(setting, key):
        return 10 if key in ("rows", "fields", "unseen rows") else 0.1 if key.startswith("all fields") else 0.2

    assert kuairand_fields.summarise(done(kuairand_fields, good)).held == "held"
    trees = kuairand_fields.summarise(done(kuairand_fields, lambda s, k: 0.05 if k.startswith("trees") else good(s, k)))
    assert [says.endswith("trees from the score") for says in lost(trees)] == [True] * 4
    assert "not as a comparison" in trees.verdict
    by_tab = kuairand_fields.summarise(
        done(kuairand_fields, lambda s, k: 0.05 if k.startswith("curves by tab ece") else good(s, k))
    )
    assert lost(by_tab) == ["curves with all fields have lower ECE than curves by tab"]


def test_the_network_rises_with_the_score_whatever_its_weights():
    torch.manual_seed(0)
    network = kuairand_fields.MonotoneNetwork([5, 3]).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 0.3)
    ids = torch.stack([torch.randint(0, 6, (200,)), torch.randint(0, 4, (200,))], dim=1)
    score = torch.linspace(-6, 6, 200).double()
    for row in ids[:20]:
        assert (network(score, row.expand(200, -1)).diff() > 0).all()


def test_new_values_of_a_field_are_told_from_known_ones():
    def rows(tab, length):
        count = len(tab)
        fields = {"tab": np.array(tab), "length": np.array(length, float)}
        return kuairand_fields.Rows(
            np.zeros(count), np.zeros(count, int), np.arange(count), np.ones(count, bool), fields
        )

    known, asked = kuairand_fields.coded(rows(["a", "b"], [1, 2]), rows(["b", "c"], [3, np.nan]))
    assert known[:, 1].tolist() == [0, 1]
    assert asked[:, 1].tolist() == [1, -1]
    binned = kuairand_fields._binned(rows(["a", "b"] * 20, range(40)), rows(["b", "c"], [3, np.nan]))[1]
    assert binned[1, 2] == 0
    assert binned[0, 2] >= 0
