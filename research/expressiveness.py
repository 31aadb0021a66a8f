"""The paper's two figures of expressive power: y = x^2, and a target that falls at the end.

Inputs are logits of x, the loss is binary cross-entropy on the soft target, as in the paper. The best monotone fit of
the second target is what the pool-adjacent-violators algorithm gives. Without the constraint, the layer should follow
that target down as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer.errors import need
from isolayer.grid import Grid
from isolayer.nn.isotonic import Constraint, IsotonicLayer
from research.result import Finished, Numbers, Part, Result, Row, Unit, certain

Points = NDArray[np.float64]
STEPS = 600

CLAIM = "The layer fits y = x^2 nearly perfectly, and the best monotone fit of a target that falls at the end."
PAPER = "section 3.4, figure 2 and the one it speaks of beside it; no numbers"
NEAR = 0.01  # largest distance that counts as near-perfect


def square(x: Points) -> Points:
    """The first target.

    >>> square(np.array([0.5])).tolist()
    [0.25]
    """
    return x**2


def square_that_falls(x: Points) -> Points:
    """The second target: rises to x = 0.95 and falls after it.

    >>> square_that_falls(np.array([0.5, 0.95, 1.0])).round(4).tolist()
    [0.25, 0.9025, 0.81]
    """
    return np.where(x <= 0.95, x**2, (1.9 - x) ** 2)


TARGETS: dict[str, Callable[[Points], Points]] = {"square": square, "square that falls": square_that_falls}


def best_monotone_fit(y: Points) -> Points:
    """The non-decreasing sequence nearest to ``y``.

    >>> best_monotone_fit(np.array([0.0, 2.0, 1.0])).tolist()
    [0.0, 1.5, 1.5]
    """
    isotonic = need("sklearn.isotonic")
    return np.asarray(isotonic.isotonic_regression(y), dtype=np.float64)


def fitted(x: Points, y: Points, *, steps: int = STEPS, constraint: Constraint = "relu") -> Points:
    """What the layer makes of ``x`` when trained on ``y``.

    >>> x = np.linspace(0.01, 0.99, 99)
    >>> bool(abs(fitted(x, x**2, steps=300) - x**2).max() < 0.05)
    True
    """
    layer = IsotonicLayer(grid=Grid(-8, 8, 0.2), constraint=constraint)
    logit = torch.logit(torch.as_tensor(x, dtype=torch.float32))
    target = torch.as_tensor(y, dtype=torch.float32)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, eta_min=1e-3)
    for _ in range(steps):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(layer(logit)[:, 0], target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return layer.prob(logit)[:, 0].numpy().astype(np.float64)


def run(*, steps: int = STEPS, points: int = 999) -> dict[str, Any]:
    """Fit both targets: the curves, and the largest distance to the best monotone fit away from the jump.

    >>> result = run(steps=200, points=99)
    >>> sorted(result["largest_distance"])
    ['square', 'square that falls']
    """
    x = np.linspace(0.001, 0.999, points)
    columns: dict[str, list[Any]] = {name: [] for name in ("figure", "x", "target", "best", "layer")}
    largest, fall = {}, 0.0
    for name, target in TARGETS.items():
        y = target(x)
        best, layer = best_monotone_fit(y), fitted(x, y, steps=steps)
        jump = np.abs(best - y) > 0  # where pooling cuts the target off, its corner is sharper than a bucket
        corner = np.abs(x - x[jump][0]) < 0.02 if jump.any() else np.zeros_like(jump)
        largest[name] = float(np.abs(layer - best)[~corner].max())
        fall = max(fall, float(-np.diff(layer).min()))
        for key, values in (("x", x), ("target", y), ("best", best), ("layer", layer)):
            columns[key].extend(values.tolist())
        columns["figure"].extend([name] * points)
    y = square_that_falls(x)
    free = fitted(x, y, steps=steps, constraint=None)
    far = float(np.abs(free - y)[np.abs(x - 0.95) > 0.02].max())
    return {"largest_distance": largest, "largest_fall": fall, "free_distance": far, "curves": columns}


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """One: nothing here is left to chance."""
    return [Unit(0, quick=quick, cost=3)]


def run_unit(unit: Unit) -> Numbers:
    """Both figures."""
    return run(points=499 if unit.quick else 999)


def summarise(finished: Sequence[Finished]) -> Result:
    """How far the layer is from the best monotone fit."""
    found = finished[0].numbers
    far = {name: certain(distance) for name, distance in found["largest_distance"].items()}
    fall, free = certain(found["largest_fall"]), certain(found["free_distance"])
    rows = [Row(name, "largest distance from the best monotone fit", one, digits=4) for name, one in far.items()]
    rows.append(Row("both", "largest fall between neighbouring points", fall, digits=6))
    rows.append(Row("square that falls, without the constraint", "largest distance from the target", free, digits=4))
    parts = [Part(f"{name} is fitted within {NEAR}", one, below=NEAR) for name, one in far.items()]
    parts.append(Part("no fitted curve falls (beyond rounding)", fall, below=1e-6))
    parts.append(Part(f"without the constraint the target that falls is followed within {NEAR}", free, below=NEAR))
    return Result(tuple(rows), tuple(parts), {"curves": found["curves"]})


def chart(result: dict[str, Any]) -> Any:
    """Both figures side by side, as an Altair chart.

    >>> type(chart(run(steps=20, points=19))).__name__
    'FacetChart'
    """
    alt = need("altair")
    curves = result["curves"]
    lines = {"target": "target", "layer": "isotonic layer", "best": "best monotone fit"}  # drawn in this order
    rows = [
        {"figure": figure, "x": x, "y": y, "line": label}
        for key, label in lines.items()
        for figure, x, y in zip(curves["figure"], curves["x"], curves[key], strict=True)
    ]
    order = list(lines.values())

    def scale(values: list[Any]) -> Any:
        return alt.Scale(domain=order, range=values)

    line = (
        alt.Chart(alt.Data(values=rows))
        .mark_line()
        .encode(
            x=alt.X("x:Q", title="x"),
            y=alt.Y("y:Q", title="y", scale=alt.Scale(domain=[0, 1])),
            color=alt.Color("line:N", title=None, scale=scale(["#c3c7d0", "#2457c5", "#f0a30a"]), sort=order),
            strokeDash=alt.StrokeDash("line:N", title=None, scale=scale([[1, 0], [1, 0], [5, 4]]), sort=order),
            strokeWidth=alt.StrokeWidth("line:N", title=None, scale=scale([7, 4, 2]), sort=order),
        )
        .properties(width=320, height=260)
    )
    return line.facet(alt.Facet("figure:N", title=None, sort=list(TARGETS)))
