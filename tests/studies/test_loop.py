"""The training loop of the studies: it learns a rate and repeats itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isolayer.debias.baselines import Naive
from research import loop


def test_the_loop_learns_a_rate_and_repeats_itself():
    rng = np.random.default_rng(0)
    columns = {"features": rng.normal(size=(4000, 3)), "click": (rng.random(4000) < 0.2).astype(int)}
    log = loop.as_log(columns, ["click"], contexts=())

    def fitted(seed):
        torch.manual_seed(0)
        model = loop.train(Naive(loop.network(3), width=loop.WIDTH), log, epochs=20, seed=seed)
        return model.serving()(log.features)["click_prob"]

    one = fitted(1)
    assert float(one.mean()) == pytest.approx(columns["click"].mean(), abs=0.03)
    assert torch.equal(one, fitted(1))
    assert not torch.equal(one, fitted(2))
