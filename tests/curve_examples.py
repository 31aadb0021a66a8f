"""Curves and rows that the tests of every way to serve curves share."""

import numpy as np

from isolayer.curves.curves import Curves
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid

GRID = Grid(lower=-6.0, upper=3.0, step=0.3)


def columns(seed=0, n=4000, missing=False):
    """Scores, labels and two context columns, a string and an integer one."""
    rng = np.random.default_rng(seed)
    device = rng.choice(np.array(["tv", "web", 'it\'s "odd"', "フォン"]), n).astype(object)
    if missing:
        device[rng.random(n) < 0.1] = None
    score = rng.normal(-2, 2, n)
    label = (rng.random(n) < 1 / (1 + np.exp(-0.7 * score))).astype(float)
    return {"score": score, "label": label, "device": device, "position": rng.integers(-1, 6, n)}


def fitted(contexts=("device", "position"), *, scale="logit", missing=False, seed=0):
    """Curves of such rows; those of the last position of every device are left out, so as to be unseen."""
    data = columns(seed, missing=missing)
    seen = data["position"] < 5
    context = {name: data[name][seen] for name in contexts}
    histogram = Histogram.from_arrays(data["score"][seen], data["label"][seen], context, grid=GRID)
    return Curves.from_histogram(histogram, scale=scale)


def questions(scale="logit", n=500, missing=False, seed=1):
    """Rows to ask about: known and unseen contexts, scores at knots, in between and far outside."""
    data = columns(seed, n, missing)
    data["device"][::7] = "never seen"
    edge = np.concatenate([GRID.knots, [-1000.0, 1000.0, GRID.lower, GRID.upper]])
    data["score"][: len(edge)] = edge
    if scale == "prob":
        data["score"] = 1 / (1 + np.exp(-np.clip(data["score"], -40, 40)))
        data["score"][:2] = 0.0, 1.0
    data["id"] = np.arange(n)
    return data
