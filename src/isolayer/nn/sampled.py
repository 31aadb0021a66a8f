"""Training on a log with down-sampled negatives: an offset in the loss, and no correction at serving.

Keeping a share r of the negatives multiplies the odds of the event by 1 / r, whatever the features. A model whose
logits are compared with such labels at an offset of -log(r) therefore learns the logits of real traffic.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isolayer.errors import InputError
from isolayer.settings import number


def sampled_logit(logit: Tensor, negative_rate: float | Tensor) -> Tensor:
    r"""Logit of the event among rows whose negatives were sampled: :math:`z - \log r`. For the loss only.

    Args:
        logit: Logits of real traffic, ``[batch]`` or ``[batch, units]``.
        negative_rate: Share of the negatives that was kept, in (0, 1]: one number, or one per row ``[batch]``. For a
            positive row, it is the rate at which a negative in its place would have been kept.

    >>> logit = torch.tensor([0.0, -2.0])
    >>> torch.nn.functional.binary_cross_entropy_with_logits(sampled_logit(logit, 0.1), torch.tensor([1.0, 0.0]))
    tensor(0.4756)
    """
    if not isinstance(negative_rate, Tensor):
        advice = "give the share of the negatives that was kept"
        negative_rate = number("negative_rate", negative_rate, 0, 1, ends="(]", advice=advice)
    rate = torch.as_tensor(negative_rate, dtype=logit.dtype, device=logit.device)
    if rate.dim() not in (0, 1) or (rate.dim() == 1 and len(rate) != len(logit)):
        raise InputError(
            f"negative_rate: expected a number or shape [{len(logit)}], got {list(rate.shape)}; give one rate per row"
        )
    if not torch.compiler.is_compiling() and rate.numel():
        low, high = (float(end) for end in torch.aminmax(rate))
        if not (low > 0 and high <= 1):  # also when NaN
            raise InputError(f"negative_rate: expected shares in (0, 1], got {low} to {high}; give the share kept")
    shift = rate.log()
    return logit - (shift.unsqueeze(-1) if logit.dim() == 2 and rate.dim() == 1 else shift)
