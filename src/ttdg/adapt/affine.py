"""γ and β of all BatchNorm layers as one vector, and a step on it with a rate for each tensor."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adapt import batchnorm


@dataclass(frozen=True)
class Rates:
    """How far each tensor goes. `unit` is what a gradient is divided by; without one, by its own root mean square."""

    values: Float[Tensor, " p"]
    unit: Float[Tensor, " p"] | None = None


class Affine:
    """γ and β of all BatchNorm layers of a network as one vector, tensor after tensor."""

    def __init__(self, network: nn.Module) -> None:
        self.tensors = [p.requires_grad_(True) for p in batchnorm.affine(network)]
        known = {id(p): name for name, p in network.named_parameters()}
        self.names = [known[id(p)] for p in self.tensors]
        self.sizes = [p.numel() for p in self.tensors]
        self.lengths = torch.tensor(self.sizes, device=self.tensors[0].device)
        self.owner = torch.repeat_interleave(torch.arange(len(self.sizes)), torch.tensor(self.sizes)).to(
            self.lengths.device
        )

    def gradient(self, loss: Tensor) -> Float[Tensor, " n"]:
        """Zero where the loss is not finite: such a batch moves nothing. The graph is kept for the next loss."""
        parts = torch.autograd.grad(
            loss, self.tensors, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.where(torch.isfinite(loss.detach()), torch.cat(parts), 0.0)

    def sums(self, values: Float[Tensor, " n"]) -> Float[Tensor, " p"]:
        return torch.segment_reduce(values, "sum", lengths=self.lengths, unsafe=True)

    def size(self, gradient: Float[Tensor, " n"]) -> Float[Tensor, " p"]:
        """Root mean square of each tensor's part."""
        return (self.sums(gradient.square()) / self.lengths).sqrt().clamp(min=1e-12)

    def step(self, gradient: Float[Tensor, " n"], rates: Rates) -> Float[Tensor, " n"]:
        unit = self.size(gradient) if rates.unit is None else rates.unit
        return (rates.values / unit)[self.owner] * gradient

    @contextmanager
    def moved(self, step: Float[Tensor, " n"]) -> Iterator[None]:
        """θ − step inside the block; θ again after it, bit for bit."""
        start = torch.cat([p.detach() for p in self.tensors])
        self.set(start - step)
        try:
            yield
        finally:
            self.set(start)

    @torch.no_grad()
    def set(self, values: Float[Tensor, " n"]) -> None:
        torch._foreach_copy_(list(self.tensors), list(values.split(self.sizes)))
