"""`FieldCurves`: curves with terms of fields as one torch module, for serving inside a model.

By default it is fixed. With ``trainable=True`` the values of the terms are parameters, which start from the fitted
values and can be trained further. With :meth:`FieldCurves.penalty` the objective is that of the exact fit, so the
fitted values are its minimum.

The module takes levels, not values: ``levels_of(curves, frame)`` converts columns of any type to levels, in the order
of ``curves.terms.fields``. A level of -1 adds nothing. The result is that of :meth:`isolayer.curves.curves.Curves`.
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
from isolayer.fitting.backfitting import LEAST
from isolayer.fitting.frames import columns
from isolayer.fitting.terms import LAST_GRID, Term, Terms
from isolayer.nn.context_ids import CURVE
from isolayer.nn.frozen import FrozenCurves
from isolayer.settings import flag


class FieldCurves(nn.Module):
    """Fixed curves with the terms of their fields, which are fixed too unless ``trainable``.

    Args:
        curves: Curves that were fitted with fields.
        trainable: Whether the values of the terms are parameters; frozen terms, the base curves and the last curve
            are always fixed.
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

    def __init__(self, curves: Curves, *, trainable: bool = False, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self._curves = curves
        if curves.terms is None:
            raise InputError("curves: expected curves with fields, got none; use FrozenCurves")
        terms = curves.terms
        self.base = FrozenCurves.from_curves(replace(curves, terms=None), dtype=dtype)
        free = [flag("trainable", trainable) and not term.frozen for term in terms.terms]
        tables = (
            _TermTable(term, _links(terms, term), own, dtype) for term, own in zip(terms.terms, free, strict=True)
        )
        self.terms = nn.ModuleList(tables)
        self.last = None
        if terms.last is not None:
            last = torch.as_tensor(terms.last[None], dtype=dtype)
            self.last = FrozenCurves(last, grid=LAST_GRID, extrapolation="extend")
        for name, value in (("lower", terms.lower), ("width", terms.width)):
            self.register_buffer(name, torch.tensor(value, dtype=dtype))
        _register(self, "shared", torch.tensor(terms.shared, dtype=dtype), trainable)

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

    def penalty(self) -> Tensor:
        """Half the energy of the trainable values under the strengths of the fit, a scalar.

        The exact fit minimises the summed log loss of its rows plus this penalty.
        """
        energy: Tensor = LEAST * self.shared.square().sum()
        table: Any
        for table in self.terms:
            energy = energy + table.energy()
        return energy / 2

    def to_curves(self) -> Curves:
        """The curves with the values as they are now."""
        curves, moved = self._curves, list[Term]()
        assert curves.terms is not None
        for term, table in zip(curves.terms.terms, self.terms, strict=True):
            values: Any = table.values
            moved.append(replace(term, values=values.detach().cpu().double().numpy().copy()))
        shared = self.shared.detach().tolist()
        return replace(curves, terms=replace(curves.terms, terms=tuple(moved), shared=(shared[0], shared[1])))


def _register(module: nn.Module, name: str, value: Tensor, trainable: bool) -> None:
    if trainable:
        module.register_parameter(name, nn.Parameter(value))
    else:
        module.register_buffer(name, value)


def _links(terms: Terms, term: Term) -> Any:
    """Which neighbouring levels of a term are smoothed together; None if levels have no order."""
    one = terms.fields[term.views[0].field]
    return one.linked if len(term.views) == 1 and one.kind == "number" else None


class _TermTable(nn.Module):
    """The values of one term by the levels of its fields; rows without a cell get zeros."""

    cells: Tensor
    values: Tensor
    strengths: Tensor
    linked: Tensor | None

    def __init__(self, term: Term, linked: Any, trainable: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.fields, self.sizes = term.fields, [view.size for view in term.views]
        for i, view in enumerate(term.views):  # index 0 is level -1
            self.register_buffer(f"view_{i}", torch.as_tensor(np.concatenate([[-1], view.level]), dtype=torch.int64))
        self.register_buffer("cells", torch.as_tensor(term.cells, dtype=torch.int64))
        _register(self, "values", torch.as_tensor(term.values, dtype=dtype).clone(), trainable)
        self.register_buffer("strengths", torch.as_tensor(term.strengths, dtype=dtype))
        self.register_buffer("linked", None if linked is None else torch.as_tensor(linked))

    def forward(self, levels: Tensor) -> Tensor:
        cell = torch.zeros(len(levels), dtype=torch.int64, device=levels.device)
        known = torch.ones(len(levels), dtype=torch.bool, device=levels.device)
        for i, (field, size) in enumerate(zip(self.fields, self.sizes, strict=True)):
            view: Any = getattr(self, f"view_{i}")
            level = view.index_select(0, levels[:, field].long() + 1)
            known, cell = known & (level >= 0), cell * size + level
        row = torch.searchsorted(self.cells, cell).clamp(max=len(self.cells) - 1)
        known = known & (self.cells.index_select(0, row) == cell)
        padded = nn.functional.pad(self.values, (0, 2 - self.values.shape[1], 0, 1))  # for tilts, for no cell
        return padded.index_select(0, torch.where(known, row, len(self.cells)))

    def energy(self) -> Tensor:
        """Squares of the values, and of their differences between linked levels, each times its strength."""
        if not self.values.requires_grad or not len(self.strengths):
            return self.values.new_zeros(())
        columns = self.values.shape[1]
        own: Tensor = (self.values.square() * self.strengths[:columns]).sum()
        if self.linked is None:
            return own
        rise = self.values.diff(dim=0)[self.linked]
        return own + (rise.square() * self.strengths[columns:]).sum()


def levels_of(curves: Curves, frame: Any) -> Tensor:
    """Levels of the fields of curves in a frame, shape ``[n, fields]``."""
    if curves.terms is None:
        raise InputError("curves: expected curves with fields, got none; use FrozenCurves")
    found = field_levels.levels_of(curves.terms.fields, columns(frame, curves.terms.columns))
    return torch.as_tensor(np.stack(found, axis=1))
