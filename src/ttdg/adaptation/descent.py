"""Optimiser steps and snapshots for methods whose parameters or losses are not those of `GradientAdapter`."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn


class Descent:
    """A fused optimiser (Adam, or SGD without momentum) over chosen parameters that skips a loss that is not finite.

    The device skips the step by itself (through `found_inf`, the flag that a gradient scaler sets), so that the host
    does not wait for the loss.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        kind: Literal["adam", "sgd"] = "adam",
    ) -> None:
        self.parameters = [parameter.requires_grad_(True) for parameter in parameters]
        self.lr, self.betas, self.kind = lr, betas, kind
        self.restart()

    def restart(self) -> None:
        """Replace the optimiser by a new one, without moments."""
        if self.kind == "sgd":
            self.optimiser: Any = torch.optim.SGD(self.parameters, self.lr, fused=True)
        else:
            self.optimiser = torch.optim.Adam(self.parameters, self.lr, self.betas, fused=True)

    def step(self, loss: Tensor) -> None:
        """Take one step down the loss; do nothing if the loss is not finite or depends on no parameter."""
        if not loss.requires_grad:  # for instance, the images are too small for any BatchNorm statistics
            return
        loss.backward(inputs=self.parameters)  # type: ignore[no-untyped-call]
        self.optimiser.found_inf = (~torch.isfinite(loss.detach())).float()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)


class Snapshot:
    """Copies of tensors; `restore` writes the copied values back in place, bit for bit.

    It keeps the tensors themselves and no views of them, so that in a copy of an adapter both are those of the copy.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = list(tensors)
        self.values = [tensor.detach().clone() for tensor in self.tensors]

    @torch.no_grad()
    def restore(self) -> None:
        """Write the copied values back."""
        for kind in {tensor.dtype for tensor in self.tensors}:  # BatchNorm's counters are integers
            rows = [(a, b) for a, b in zip(self.tensors, self.values, strict=True) if a.dtype == kind]
            torch._foreach_copy_([a for a, _ in rows], [b for _, b in rows])
