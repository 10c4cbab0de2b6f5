"""Prepare networks and optimisers for capture as CUDA graphs.

A captured call (see `ttdg.networks.cuda_graph`) works on the tensors that existed at capture. The values of tensors may
change between calls. Other tensors, another BatchNorm mode or a new hook require another capture, or forbid it.
"""

from collections.abc import Hashable
from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Adam, AdamW, Optimizer


class CaptureGuard:
    """Describes what a captured pass of a network depends on, apart from the values of its weights.

    Calling the guard returns a hashable description that changes when the network must be captured again. It returns
    None if the network must not be captured: `possible` is False, or a module has a forward hook, which must run at
    every pass.
    """

    def __init__(self, network: nn.Module, possible: bool = True) -> None:
        self.network, self.possible = network, possible
        self._modules = list(network.modules())
        self._norms = [module for module in self._modules if isinstance(module, _BatchNorm)]
        self._weight = next(network.parameters(), None)
        self._modes: list[Any] = []
        self._mode_changes = 0

    def __call__(self) -> Hashable:
        """Address of the weights, training flag and number of BatchNorm mode changes; None if not capturable."""
        if not self.possible or any(m._forward_hooks or m._forward_pre_hooks for m in self._modules):
            return None
        modes = [layer.__dict__.get("mode") for layer in self._norms]
        if any(now is not before for now, before in zip_longest(modes, self._modes)):
            self._modes, self._mode_changes = modes, self._mode_changes + 1
        address = None if self._weight is None else self._weight.data_ptr()  # `network.to` changes it
        return address, self.network.training, self._mode_changes


def make_capturable(optimiser: Optimizer) -> bool:
    """Prepare a fused optimiser for capture, and return whether its steps can be captured."""
    for group in optimiser.param_groups:
        if (
            "capturable" in group
        ):  # Adam; the fused implementation computes the same with and without this flag
            group["capturable"] = True
            optimiser._warned_capturable_if_run_uncaptured = True  # type: ignore[attr-defined]
        if group.get("momentum") and zero_state_is_fresh(optimiser):
            for parameter in group[
                "params"
            ]:  # torch leaves the buffer unset if the very first step is skipped
                optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return zero_state_is_fresh(optimiser)


@torch.no_grad()
def reset_optimiser(optimiser: Optimizer) -> None:
    """Reset the state and learning rate of an optimiser to those of a new one.

    State is zeroed in place where possible, because captured graphs keep using the same tensors.
    """
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
    """True if zeroed state equals the state of a new optimiser.

    This holds for Adam, AdamW, and SGD without dampening. With dampening, torch leaves only the first step undamped.
    """
    if isinstance(optimiser, SGD):
        return not any(group["dampening"] for group in optimiser.param_groups)
    return isinstance(optimiser, Adam | AdamW)
