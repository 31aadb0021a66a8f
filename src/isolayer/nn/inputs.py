"""What layers and models are given besides plain settings: tensors, modules and the sizes of context features.

Checks of a batch look at types and shapes only, so that they cost nothing and can be compiled. What the ids of a
context mean is in `context_ids`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from isolayer.errors import InputError
from isolayer.settings import count, instance, mapping, shown


def tensor(name: str, value: Any) -> Tensor:
    """A tensor; arrays, lists and numbers are refused.

    >>> tensor("logit", [0.5])
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: logit: expected a tensor, got [0.5]; use torch.as_tensor
    """
    if not isinstance(value, Tensor):
        raise InputError(f"{name}: expected a tensor, got {shown(value)}; use torch.as_tensor")
    return value


def floats(name: str, value: Any) -> Tensor:
    """A tensor of floating-point values.

    >>> import torch
    >>> floats("logit", torch.tensor([1]))
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: logit: expected floating-point values, got torch.int64; call .float()
    """
    if not tensor(name, value).is_floating_point():
        raise InputError(f"{name}: expected floating-point values, got {value.dtype}; call .float()")
    found: Tensor = value
    return found


def module(name: str, value: Any) -> nn.Module:
    """A torch module.

    >>> module("backbone", None)
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: backbone: expected a Module, got None; give a torch.nn.Module
    """
    return instance(name, value, nn.Module, advice="give a torch.nn.Module")


def context_sizes(contexts: Mapping[str, int] | Any, least: int = 1) -> dict[str, int]:
    """Name and number of ids of each context feature.

    >>> context_sizes({"position": 0})
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: contexts 'position': expected a positive integer, got 0; count its values
    """
    read = mapping("contexts", contexts, advice="give the number of ids of each feature")
    return {name: count(f"contexts {name!r}", size, least, advice="count its values") for name, size in read.items()}
