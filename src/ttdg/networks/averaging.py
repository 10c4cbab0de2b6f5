"""Exponential moving averages of weights and statistics."""

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def approach(slow: Sequence[Tensor], fast: Sequence[Tensor], share: Tensor) -> None:
    """slow ← (1−share)·slow + share·fast, in place; the share stays on the device, so nothing waits for it."""
    ahead = list(torch._foreach_sub(list(fast), list(slow)))
    torch._foreach_mul_(ahead, share)
    torch._foreach_add_(list(slow), ahead)
