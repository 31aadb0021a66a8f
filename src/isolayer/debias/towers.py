"""Towers: layers of each task between a shared backbone and its relevance logit, as in the paper's figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from isolayer.debias.serving import BIAS_RATE
from isolayer.errors import InputError
from isolayer.nn.inputs import module
from isolayer.settings import count

Towers = Mapping[str, nn.Module] | nn.Module


class TowerRelevance(nn.Module):
    """One relevance logit per task: linear in the output of the task's tower, which reads a shared backbone.

    Args:
        towers: A module for every task, from the backbone's output to ``[batch, width]``; or one module for all of
            them, such as a mixture of experts with a gate per task, from it to ``[batch, tasks, width]``.
        width: Width of the towers' output.
        tasks: Names of the tasks.

    >>> towers = {task: nn.Sequential(nn.Linear(8, 4), nn.ReLU()) for task in ("click", "skip")}
    >>> TowerRelevance(towers, 4, ("click", "skip"))(torch.zeros(5, 8)).shape
    torch.Size([5, 2])
    """

    curve_lr_factors: ClassVar[Mapping[str, float]] = {"bias": BIAS_RATE}

    def __init__(self, towers: Towers, width: int, tasks: Sequence[str]) -> None:
        super().__init__()
        self.tasks, self.width = tuple(tasks), count("width", width, advice="give the width of the towers' output")
        self.separate = isinstance(towers, Mapping | nn.ModuleDict)
        self.towers: nn.Module
        if isinstance(towers, Mapping | nn.ModuleDict):
            if set(towers.keys()) != set(self.tasks):
                given = sorted(map(str, towers.keys()))
                raise InputError(f"towers: expected a module for each of {list(tasks)}, got {given}; name them all")
            self.towers = nn.ModuleList(module(f"towers {task!r}", towers[task]) for task in self.tasks)
        else:
            self.towers = module("towers", towers)
        self.weight = nn.Parameter(nn.Linear(width, len(self.tasks), bias=False).weight.detach().clone())
        self.bias = nn.Parameter(torch.zeros(len(self.tasks)))

    def forward(self, hidden: Tensor) -> Tensor:
        """Relevance logits ``[batch, tasks]`` of the backbone's output."""
        if self.separate:
            parts = [tower(hidden) for tower in self.towers.children()]
            for task, part in zip(self.tasks, parts, strict=True):
                self._check(f"towers {task!r}", part, [self.width])
            outputs = torch.stack(parts, dim=1)
        else:
            outputs = self.towers(hidden)
            self._check("towers", outputs, [len(self.tasks), self.width])
        return (outputs * self.weight).sum(2) + self.bias

    def _check(self, name: str, output: Tensor, shape: list[int]) -> None:
        if not torch.compiler.is_compiling() and list(output.shape[1:]) != shape:
            wanted = ", ".join(["batch", *map(str, shape)])
            raise InputError(
                f"{name}: expected an output of shape [{wanted}], got {list(output.shape)}; change the tower or width"
            )
