"""pytorch-lattice's calibrated lattice, tuned and trained: run by the interpreter of its own environment.

    python lattice_worker.py given.npz answer.npz [given.npz answer.npz ...]

Given are ``inputs [n, inputs]`` and ``label [n]``, the rows ``held`` out to choose a setting, how many of the first
inputs are ``declared`` as rising, a ``seed``, and ``asked [m, inputs]``. The answer is ``logit [m]``. Nothing of this
project is imported, since its packages cannot be installed beside pytorch-lattice.

The model and its loop are those of the library's documentation: a monotone piecewise-linear calibrator of each input,
a lattice over them, and a projection onto the constraints after every step. Steps, batches, schedule and decay are
those of our own lattice; rate and settings were chosen as `research.lattice` says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lattice.enums import Interpolation, Monotonicity
from pytorch_lattice.models import CalibratedLattice
from pytorch_lattice.models.features import NumericalFeature

TRIED = ((2, 5), (3, 10), (4, 10))  # vertices of each input of the lattice, and knots of the calibrator before it
STEPS, RATE, DECAY, BATCH = 200, 0.3, 0.03, 4_000
Floats = NDArray[np.float64]
Predict = Callable[[Floats], Floats]


def learn(inputs: Floats, label: Floats, vertices: int, knots: int, *, declared: int, seed: int) -> Predict:
    """Train a calibrated lattice; its logits as a function of inputs."""
    features = [
        NumericalFeature(
            f"x{at}",
            inputs[:, at],
            num_keypoints=knots,
            monotonicity=Monotonicity.INCREASING if at < declared else None,
            lattice_size=vertices,
        )
        for at in range(inputs.shape[1])
    ]
    model = CalibratedLattice(features, interpolation=Interpolation.HYPERCUBE)
    torch.manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    rows, target = torch.from_numpy(inputs), torch.from_numpy(label)
    for _ in range(STEPS):
        chosen = torch.randperm(len(target))[:BATCH]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(rows[chosen])[:, 0], target[chosen])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        model.apply_constraints()
        schedule.step()

    def predict(asked: Floats) -> Floats:
        with torch.no_grad():
            return np.asarray(model(torch.from_numpy(asked))[:, 0].numpy())

    return predict


def answer(
    inputs: Floats, label: Floats, held: NDArray[np.bool_], asked: Floats, *, declared: int, seed: int
) -> Floats:
    """Logits of the setting that is best on the held-out rows, learned again from all of them."""

    def loss(setting: tuple[int, int]) -> float:
        logit = learn(inputs[~held], label[~held], *setting, declared=declared, seed=seed)(inputs[held])
        return float(np.mean(np.logaddexp(0, logit) - label[held] * logit))

    return learn(inputs, label, *min(TRIED, key=loss), declared=declared, seed=seed)(asked)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for question, told in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        given = np.load(question)
        rows = (given["inputs"], given["label"].astype(float), given["held"], given["asked"])
        np.savez(told, logit=answer(*rows, declared=int(given["declared"]), seed=int(given["seed"])))
