"""BatchNorm's statistics of all layers at once: where the host decides the speed, a few calls instead of some a layer.

A loss of means and variances alone has the gradient a·x + c at each layer's input, with a and c known from the
statistics. They are worked out for all layers together, and only the last product is made layer by layer.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.networks import batchnorm
from ttdg.networks.averaging import approach
from ttdg.networks.batchnorm import grouped
from ttdg.networks.batchnorm.custom_grad import LayerInput, watched_batch_norm

Pair = tuple[Tensor, Tensor]


class Copies:
    """Copies of the source's statistics, for a mode that moves them: all layers' in one call a pass, not two a layer.

    `refresh` before a pass. A layer that meets its second input since, or a pass without it, gets a copy of its own.
    With `times`, each copy holds them that many times over, side by side.
    """

    def __init__(self, network: nn.Module, times: int = 1) -> None:
        self.times, layers = times, list(batchnorm.layers(network))
        self._source = [buffer.repeat(times) for layer in layers for buffer in batchnorm.running(layer)]
        self._copies = [buffer.clone() for buffer in self._source]
        pairs = zip(self._copies[::2], self._copies[1::2], strict=True)
        self._of: dict[nn.Module, Pair] = dict(zip(layers, pairs, strict=True))
        self._left: dict[nn.Module, Pair] = {}

    @torch.no_grad()
    def refresh(self) -> None:
        torch._foreach_copy_(self._copies, self._source)
        self._left = dict(self._of)

    def take(self, layer: _BatchNorm) -> Pair:
        """Mean and variance, to be moved at will until the next `refresh`."""
        if (copies := self._left.pop(layer, None)) is not None:
            return copies
        mean, var = batchnorm.running(layer)
        return mean.repeat(self.times), var.repeat(self.times)


class Mixing:
    """`batchnorm.Mix` of a frozen network; refresh the copies before a pass. Where `met` is a list it collects what
    each layer met, and its answer, for `met_with_gradient`."""

    def __init__(self, network: nn.Module, rho: float) -> None:
        self.rho, self.copies = rho, Copies(network)
        self.met: list[tuple[LayerInput, Tensor]] | None = None
        self._share: Float[Tensor, "1"] | None = None
        self._found: list[Pair] = []  # a copy of the source's statistics, and the batch's

    @contextmanager
    def one_pass(
        self, share: Float[Tensor, "1"], met: list[tuple[LayerInput, Tensor]] | None = None
    ) -> Iterator[None]:
        """Of copies fresh by themselves and a ρ that lies on the device, so that a recorded pass may have another one
        each time. It goes through the GPU program that reduces and normalises in one call, where there is one; the
        statistics of what was `met` are then mixed for all layers together, at the end."""
        self.copies.refresh()
        self.met, self._share, self._found = met, share, []
        try:
            yield
            if self._found:
                copies, batch = zip(*self._found, strict=True)
                approach(copies, batch, share[0])
        finally:
            self.met, self._share, self._found = None, None, []

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        if batchnorm.has_too_few_values(x):
            return batchnorm.EVAL(layer, x)
        mean, var = self.copies.take(layer)
        if self.met is None or x.ndim == 2:  # a vector has no statistics of its own
            return self._normalised(layer, x, mean, var)
        met = LayerInput(layer, x, mean, var)
        self.met.append(watched_batch_norm(met, lambda x: self._normalised(layer, x, mean, var)))
        return self.met[-1][1]

    def _normalised(self, layer: _BatchNorm, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """By the mixture, which these copies of the source's statistics become, now or at the end of the pass."""
        if self._share is None:
            torch.batch_norm_update_stats(x.detach(), mean, var, self.rho)
            return batchnorm.batch_norm(layer, x, mean, var)
        fused = None if torch.is_grad_enabled() else program(layer, x)
        if fused is None:
            batch = torch.zeros_like(mean), torch.zeros_like(var)
            torch.batch_norm_update_stats(x.detach(), *batch, 1.0)
            approach((mean, var), batch, self._share[0])
            return batchnorm.batch_norm(layer, x, mean, var)
        y, batch_mean, batch_var = fused(layer, x, self._share, None)
        if self.met is not None:
            self._found += [(mean, batch_mean[0]), (var, batch_var[0])]
        return y.data  # to autograd no view, which a watched layer's answer must not be


def program(layer: _BatchNorm, x: Tensor) -> grouped.Normalise | None:
    """The GPU program for this input as one group, where there is one and it knows such layers."""
    if not x.is_cuda or x.ndim != 4 or x.dtype != torch.float32 or layer._parameters["weight"] is None:
        return None
    return grouped.gpu_program()


class SourceAndMixed:
    """Two readings of each image in one pass of a frozen network, next to each other along the batch: by the source's
    statistics, and by their mixture with the batch's. To BatchNorm they are one image of twice the channels."""

    def __init__(self, network: nn.Module, rho: float) -> None:
        self.rho, self.copies = rho, Copies(network, 2)
        self._affine = {
            layer: tuple(None if p is None else p.detach().repeat(2) for p in (layer.weight, layer.bias))
            for layer in batchnorm.layers(network)
        }

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        c = x.shape[1]
        if batchnorm.has_too_few_values(x[::2]):
            return batchnorm.EVAL(layer, x)
        mean, var = self.copies.take(layer)
        wide = x.reshape(len(x) // 2, 2 * c, *x.shape[2:])
        torch.batch_norm_update_stats(wide[:, c:], mean[c:], var[c:], self.rho)
        fast, (weight, bias) = torch.backends.cudnn.enabled, self._affine[layer]
        return torch.batch_norm(wide, weight, bias, mean, var, False, 0.0, layer.eps, fast).view_as(x)


def side_by_side(statistics: Iterable[Tensor]) -> Float[Tensor, "*b channels"]:
    """Statistics of all layers, along the channels."""
    return torch.cat(list(statistics), -1)


def channels(
    inputs: Sequence[Tensor], images: int
) -> tuple[Float[Tensor, "channels"], Float[Tensor, "channels"]]:
    """Side by side: the share of each channel in its layer's mean, and of how many values its statistics are made
    where they are taken over `images` images."""
    shapes = tuple((x.shape[1], images * x[0, 0].numel()) for x in inputs)
    return _channels(shapes, inputs[0].device)


@cache  # for ever: a recorded call goes on using them
def _channels(shapes: tuple[tuple[int, int], ...], device: torch.device) -> Pair:
    widths = torch.tensor([width for width, _ in shapes])
    share, values = 1 / widths, torch.tensor([float(count) for _, count in shapes])
    return share.repeat_interleave(widths).to(device), values.repeat_interleave(widths).to(device)


def with_gradient(
    loss: Float[Tensor, ""],
    a: Float[Tensor, "#b channels"],
    c: Float[Tensor, "#b channels"],
    inputs: Sequence[Tensor],
) -> Float[Tensor, ""]:
    """The value `loss`, whose gradient at each of the inputs is a·x + c."""
    return _Linear.apply(loss, torch.stack([a, c]), *inputs)  # type: ignore[no-untyped-call,no-any-return]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, lines: Tensor, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(lines, *inputs)
        return loss.clone()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        lines, *inputs = ctx.saved_tensors
        layers = (lines * gradient).split([x.shape[1] for x in inputs], -1)
        found: list[Tensor | None] = [None, None]
        for x, layer in zip(inputs, layers, strict=True):
            a, c = layer[(..., *[None] * (x.ndim - 2))]
            found.append(torch.addcmul(c, a, x))
        return tuple(found)
