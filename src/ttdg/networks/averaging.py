"""Exponential moving averages of weights and statistics."""

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def ema_update(average: Sequence[Tensor], values: Sequence[Tensor], rate: Tensor) -> None:
    """Update each average in place to (1−rate)·average + rate·value.

    `rate` is a tensor on the same device, so that the host does not wait for its value.
    """
    differences = list(torch._foreach_sub(list(values), list(average)))
    torch._foreach_mul_(differences, rate)
    torch._foreach_add_(list(average), differences)
