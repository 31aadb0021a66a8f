"""`FieldCurves`: curves with terms of fields as one torch module, for serving inside a model.

The module takes levels, not values: ``levels_of(curves, frame)`` turns columns of any type into them, in the order of
``curves.terms.fields``. A level of -1 adds nothing. It computes what :meth:`isolayer.curves.curves.Curves` does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting import field_levels
from isolayer.fitting.frames import columns
from isolayer.fitting.terms import LAST_GRID, Term
from isolayer.nn.context_ids import CURVE
from isolayer.nn.frozen import FrozenCurves


class FieldCurves(nn.Module):
    """Fixed curves with the terms of their fields: buffers only.

    Args:
        curves: Curves that were fitted with fields.
        dtype: Type of the tables; in double precision the module agrees with numpy to 1e-9.

    >>> from isolayer import IsotonicCalibrator
    >>> frame = {"score": [-1.0, 0.0, 1.0, 2.0] * 100, "device": ["tv", "web"] * 200}
    >>> curves = IsotonicCalibrator(fields=("device",)).fit(frame, [0, 0, 1, 0, 0, 1, 1, 1] * 50).curves_
    >>> module = FieldCurves(curves)
    >>> module(torch.zeros(2, dtype=torch.float64), levels_of(curves, {"device": ["tv", "web"]})).shape
    torch.Size([2])
    """

    lower: Tensor
    width: Tensor
    shared: Tensor

    def __init__(self, curves: Curves, *, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        if curves.terms is None:
            raise InputError("curves: expected curves with fields, got none; use FrozenCurves")
        terms = curves.terms
        self.base = FrozenCurves.from_curves(replace(curves, terms=None), dtype=dtype)
        self.terms = nn.ModuleList(_TermTable(term, dtype) for term in terms.terms)
        self.last = None
        if terms.last is not None:
            last = torch.as_tensor(terms.last[None], dtype=dtype)
            self.last = FrozenCurves(last, grid=LAST_GRID, extrapolation="extend")
        for name, value in (("lower", terms.lower), ("width", terms.width), ("shared", terms.shared)):
            self.register_buffer(name, torch.tensor(value, dtype=dtype))

    def forward(self, logit: Tensor, levels: Tensor, rows: Tensor | None = None) -> Tensor:
        """Calibrated logits.

        Args:
            logit: Raw logits, shape ``[batch]``.
            levels: Level of every field, -1 for none, shape ``[batch, fields]``.
            rows: Row of the base curve, ``curves.rows_of(context, n)``, shape ``[batch]``; needed with contexts.

        Returns:
            Logits, shape ``[batch]``.
        """
        base: Tensor = self.base(logit, {CURVE: rows} if self.base.contexts else None)[:, 0]
        offset, tilt = (torch.zeros_like(base) + part for part in self.shared)
        for term in self.terms:
            values = term(levels)  # [batch, 2]
            offset, tilt = offset + values[:, 0], tilt + values[:, 1]
        place = ((base - self.lower) / self.width).clamp(0, 1) - 0.5
        corrected: Tensor = base + offset + torch.maximum(tilt, -self.width) * place
        if self.last is None:
            return corrected
        ended: Tensor = self.last(corrected)[:, 0]
        return ended


class _TermTable(nn.Module):
    """The values of one term by the levels of its fields, with a row of zeros for what has no cell."""

    cells: Tensor
    values: Tensor

    def __init__(self, term: Term, dtype: torch.dtype) -> None:
        super().__init__()
        self.fields, self.sizes = term.fields, [view.size for view in term.views]
        for i, view in enumerate(term.views):  # place 0 is level -1
            self.register_buffer(f"view_{i}", torch.as_tensor(np.concatenate([[-1], view.level]), dtype=torch.int64))
        values = np.zeros((len(term.cells) + 1, 2))
        values[:-1, : term.values.shape[1]] = term.values
        self.register_buffer("cells", torch.as_tensor(term.cells, dtype=torch.int64))
        self.register_buffer("values", torch.as_tensor(values, dtype=dtype))

    def forward(self, levels: Tensor) -> Tensor:
        cell = torch.zeros(len(levels), dtype=torch.int64, device=levels.device)
        known = torch.ones(len(levels), dtype=torch.bool, device=levels.device)
        for i, (field, size) in enumerate(zip(self.fields, self.sizes, strict=True)):
            view: Any = getattr(self, f"view_{i}")
            level = view.index_select(0, levels[:, field].long() + 1)
            known, cell = known & (level >= 0), cell * size + level
        row = torch.searchsorted(self.cells, cell).clamp(max=len(self.cells) - 1)
        known = known & (self.cells.index_select(0, row) == cell)
        return self.values.index_select(0, torch.where(known, row, len(self.cells)))


def levels_of(curves: Curves, frame: Any) -> Tensor:
    """Levels of the fields of curves in a frame, shape ``[n, fields]``."""
    if curves.terms is None:
        raise InputError("curves: expected curves with fields, got none; use FrozenCurves")
    found = field_levels.levels_of(curves.terms.fields, columns(frame, curves.terms.columns))
    return torch.as_tensor(np.stack(found, axis=1))
