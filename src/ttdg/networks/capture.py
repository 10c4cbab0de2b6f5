"""What a call needs to be repeated on a GPU: an optimiser that forgets in place, an eye on what must not change.

A recorded call (`ttdg.networks.cuda_graph`) works on the tensors it was recorded with. Values may change between calls;
other tensors, other BatchNorm modes or hooks ask for another recording, or for none.
"""

from collections.abc import Hashable
from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Adam, AdamW, Optimizer


class CaptureGuard:
    """What a recorded pass through a network depends on beyond its weights' values; None where it must not be recorded:
    `possible` is false, or a hook wants to see every pass."""

    def __init__(self, network: nn.Module, possible: bool = True) -> None:
        self.network, self.possible = network, possible
        self.every = list(network.modules())
        self.norms = [module for module in self.every if isinstance(module, _BatchNorm)]
        self.weights = next(network.parameters(), None)
        self.modes: list[Any] = []
        self.changes = 0  # of the modes

    def __call__(self) -> Hashable:
        if not self.possible or any(m._forward_hooks or m._forward_pre_hooks for m in self.every):
            return None
        modes = [layer.__dict__.get("mode") for layer in self.norms]
        if any(now is not before for now, before in zip_longest(modes, self.modes)):
            self.modes, self.changes = modes, self.changes + 1
        where = None if self.weights is None else self.weights.data_ptr()  # `network.to` moves them
        return where, self.network.training, self.changes


def make_capturable(optimiser: Optimizer) -> bool:
    """Let a fused optimiser's steps be recorded; whether they can be."""
    for group in optimiser.param_groups:
        if "capturable" in group:  # Adam; its fused form does the same either way
            group["capturable"] = True
            optimiser._warned_capturable_if_run_uncaptured = True  # type: ignore[attr-defined]
        if group.get("momentum") and zero_state_is_fresh(optimiser):
            for parameter in group["params"]:  # torch leaves it unset where the very first step is skipped
                optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return zero_state_is_fresh(optimiser)


@torch.no_grad()
def clear_optimiser(optimiser: Optimizer) -> None:
    """As if new, in place where its state starts at zero: what was recorded goes on using the same tensors."""
    if zero_state_is_fresh(optimiser):
        states = [x for state in optimiser.state.values() for x in state.values() if x is not None]
        for kind in {(x.device, x.dtype) for x in states}:
            torch._foreach_zero_([x for x in states if (x.device, x.dtype) == kind])
    else:
        optimiser.state.clear()
    for group in optimiser.param_groups:
        group["lr"] = optimiser.defaults["lr"]
    optimiser.found_inf = None  # type: ignore[attr-defined]


def zero_state_is_fresh(optimiser: Optimizer) -> bool:
    """Adam's moments and step do; SGD's momentum might as well, unless its first step is the only one undamped."""
    if isinstance(optimiser, SGD):
        return not any(group["dampening"] for group in optimiser.param_groups)
    return isinstance(optimiser, Adam | AdamW)
