"""Steps down a loss, for methods that are more than one optimiser on the network's logits."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn


class Descent:
    """An optimiser over chosen parameters. A loss that is not finite moves nothing, and the device decides that
    by itself: the flag a gradient scaler would set, so the host never waits for the loss."""

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
        """Forget the moments."""
        if self.kind == "sgd":
            self.optimiser: Any = torch.optim.SGD(self.parameters, self.lr, momentum=0.9, fused=True)
            for p in self.parameters:  # torch leaves it unset where the very first step is skipped
                self.optimiser.state[p]["momentum_buffer"] = torch.zeros_like(p)
        else:
            self.optimiser = torch.optim.Adam(self.parameters, self.lr, self.betas, fused=True)

    def step(self, loss: Tensor) -> None:
        if not loss.requires_grad:  # the images are too small for anything to depend on
            return
        loss.backward(inputs=self.parameters)  # type: ignore[no-untyped-call]
        self.optimiser.found_inf = (~torch.isfinite(loss.detach())).float()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)


class Snapshot:
    """Tensors as they were; `restore` puts the values back in place, bit for bit."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = [tensor.detach() for tensor in tensors]
        self.values = [tensor.clone() for tensor in self.tensors]

    @torch.no_grad()
    def restore(self) -> None:
        for kind in {tensor.dtype for tensor in self.tensors}:  # counters are integers
            rows = [(a, b) for a, b in zip(self.tensors, self.values, strict=True) if a.dtype == kind]
            torch._foreach_copy_([a for a, _ in rows], [b for _, b in rows])


def zero_non_finite(images: Tensor) -> Tensor:
    """What is not finite becomes 0: statistics and weights that outlive a batch must not meet it."""
    return images.nan_to_num(0.0, 0.0, 0.0)


def any_finite_image(images: Tensor) -> bool:
    """Is a single image of the batch finite? The host waits to know."""
    return bool(images.isfinite().flatten(1).all(1).any())
