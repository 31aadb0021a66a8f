"""The paper's layer, equation by equation, in plain Python: the oracle of the layer's tests.

Appendix C's listing is the same in tensors; `listing` keeps its shape and cost, for the benchmarks and the gradients.
"""

import math

import torch
from torch import Tensor


def calibrated_logit(x: float, weights: list[float], bias: float, lower: float, upper: float, step: float) -> float:
    """z(x) of one unit for one input."""
    clipped = min(max(x, lower), upper)  # eq. 1
    buckets = round((upper - lower) / step) + 1  # eq. 2, for a whole number of steps
    assert buckets == len(weights)
    bucket = math.floor((clipped - lower + step) / step)  # eq. 3
    bucket = min(max(bucket, 0), buckets - 1)
    activation = []
    for j in range(buckets):  # eq. 4
        if j < bucket:
            activation.append(step)
        elif j == bucket:
            activation.append((clipped - lower + step) - bucket * step)
        else:
            activation.append(0.0)
    positive = [max(w, 0.0) for w in weights]  # eq. 5
    return sum(a * w for a, w in zip(activation, positive, strict=True)) + (lower - step) + bias  # eq. 6


def listing(x: Tensor, weight: Tensor, bias: Tensor, lower: float, upper: float, step: float) -> Tensor:
    """z of every input and unit, through the activation tensor ``[batch, units, buckets]``."""
    clipped = x.clamp(lower, upper)
    offset = clipped - lower + step  # [batch, units]
    bucket = (offset / step).long().clamp(0, weight.shape[-1] - 1)
    columns = torch.arange(weight.shape[-1]).view(1, 1, -1)
    full = torch.where(
        columns < bucket.unsqueeze(2), torch.tensor(step, dtype=x.dtype), torch.tensor(0.0, dtype=x.dtype)
    )
    partial = (offset - bucket.to(x.dtype) * step).unsqueeze(2)
    activation = full.clone().scatter(2, bucket.unsqueeze(2), partial)  # [batch, units, buckets]
    return (activation * torch.relu(weight)).sum(2) + (lower - step) + bias
