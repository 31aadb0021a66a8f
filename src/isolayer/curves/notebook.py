"""How curves and calibrators are displayed in a terminal and in a notebook."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from isolayer.fitting.notebook import NotebookForm, html_form

_WIDTH, _HEIGHT, _MARGIN, _MOST = 300, 170, 8, 6
_COLOURS = ("#0b6e75", "#b4540a", "#6b4fbb", "#4d7c0f", "#be185d", "#475569")


class CurvesForm(NotebookForm):
    """The display of curves: the curves with the most rows, and a few facts."""

    def _facts(self) -> dict[str, str]:
        curves: Any = self
        facts = {"curves": f"{len(curves.values):,}", "contexts": ", ".join(curves.contexts) or "none"}
        facts |= {"rows": f"{float(curves.count[0]):,.0f}", "scale": curves.scale}
        if curves.score_name:
            facts["score"] = curves.score_name
        if curves.terms is not None:
            facts["fields"] = ", ".join(curves.fields)
        return facts if curves.monotone else facts | {"monotone": "no"}

    def _picture(self) -> str:
        return small_chart(self)


class CalibratorForm:
    """The display of a calibrator in a notebook: its settings, and its curves once it is fitted."""

    def _repr_html_(self) -> str:
        fitted: Any = getattr(self, "curves_", None)
        if fitted is None:
            return html_form(repr(self), {"fitted": "not yet: call fit"})
        return html_form(repr(self), fitted._facts(), small_chart(fitted))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def small_chart(curves: Any) -> str:
    """Raw to calibrated logit of the deepest curves with the most rows, as SVG; the dashed line is the identity.

    >>> from isolayer.curves.curves import Curves
    >>> from isolayer.grid import Grid
    >>> small_chart(Curves.identity(Grid()))[:4]
    '<svg'
    """
    start, end = curves.starts[-2:]
    rows = start + np.argsort(-curves.count[start:end], kind="stable")[:_MOST]
    knots = curves.grid.knots[1:]
    used = (curves.knot_weight[rows] > 0).any(0)
    used = used if used.sum() > 1 else np.abs(knots) <= 6
    x, y = knots[used], curves.values[np.ix_(rows, np.flatnonzero(used))]
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    span = max(high - low, 1e-9)

    def points(values: Any) -> str:
        across = _MARGIN + (x - low) / span * (_WIDTH - 2 * _MARGIN)
        down = _HEIGHT - _MARGIN - (values - low) / span * (_HEIGHT - 2 * _MARGIN)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across.tolist(), down.tolist(), strict=True))

    keys = [[str(value) for value in key[rows - start].tolist()] for key in curves.keys[-1]]
    names = [" · ".join(row) for row in zip(*keys, strict=True)] if keys else ["all rows"]
    lines = "".join(
        f'<polyline points="{points(values)}" fill="none" stroke="{colour}" stroke-width="2"><title>{escape(name)}'
        "</title></polyline>"
        for values, colour, name in zip(y, _COLOURS, names, strict=False)
    )
    words = "".join(
        f'<tspan fill="{colour}" dx="6">{escape(name[:24])}</tspan>'
        for colour, name in zip(_COLOURS, names, strict=False)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 18}" width="{_WIDTH}" role="img" aria-label="raw to calibrated logit">'
        f'<polyline points="{points(x)}" fill="none" stroke="#8c949d" stroke-dasharray="4 3"/>{lines}'
        f'<text x="2" y="{_HEIGHT + 12}" font-size="11">{words}</text></svg>'
    )
