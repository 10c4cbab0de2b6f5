"""BatchNorm statistics of all layers in a few calls, instead of several calls for each layer.

With small batches the time of a method is the number of kernel launches. A loss that depends only on the means and
variances of layer inputs x has the gradient a·x + c at each input, where a and c follow from the statistics. Here a and
c are computed for all layers together, on tensors that hold the channels of all layers one after another. Only the
final a·x + c is computed layer by layer.
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
from ttdg.networks.averaging import ema_update
from ttdg.networks.batchnorm import grouped
from ttdg.networks.batchnorm.custom_grad import LayerInput, batch_norm_with_added_gradient

Pair = tuple[Tensor, Tensor]


class StatisticsCopies:
    """Copies of the running statistics of all layers, for a mode that modifies them during a forward pass.

    `refresh` restores all copies in one call and must precede each pass. If a layer runs twice in a pass, or a pass
    runs without `refresh`, `take` returns a new copy, which is correct but slower.

    Args:
        network: the network whose running statistics are copied.
        times: number of repetitions of the statistics along the channels of each copy.
    """

    def __init__(self, network: nn.Module, times: int = 1) -> None:
        self.times, layers = times, list(batchnorm.layers(network))
        self._source = [
            buffer.repeat(times) for layer in layers for buffer in batchnorm.running_statistics(layer)
        ]
        self._copies = [buffer.clone() for buffer in self._source]
        pairs = zip(self._copies[::2], self._copies[1::2], strict=True)
        self._by_layer: dict[nn.Module, Pair] = dict(zip(layers, pairs, strict=True))
        self._available: dict[nn.Module, Pair] = {}

    @torch.no_grad()
    def refresh(self) -> None:
        """Set all copies to the running statistics again."""
        torch._foreach_copy_(self._copies, self._source)
        self._available = dict(self._by_layer)

    def take(self, layer: _BatchNorm) -> Pair:
        """Mean and variance of a layer, which the caller may modify until the next `refresh`."""
        if (copies := self._available.pop(layer, None)) is not None:
            return copies
        mean, var = batchnorm.running_statistics(layer)
        return mean.repeat(self.times), var.repeat(self.times)


class BatchedMixMode:
    """Same as `batchnorm.MixMode` for a frozen network, with fewer kernel launches.

    There are two ways to run a pass: call `copies.refresh()` before it, which mixes with the number `rho`; or run it
    inside `one_pass`, which mixes with a tensor. If `collected` is a list, each layer appends its input and its output,
    which `loss_with_fused_gradient` takes.
    """

    def __init__(self, network: nn.Module, rho: float) -> None:
        self.rho, self.copies = rho, StatisticsCopies(network)
        self.collected: list[tuple[LayerInput, Tensor]] | None = None
        self._share: Float[Tensor, "1"] | None = None  # ρ of `one_pass`
        self._unmixed: list[Pair] = []  # copies of source statistics, each with the batch statistic to mix in

    @contextmanager
    def one_pass(
        self, share: Float[Tensor, "1"], collected: list[tuple[LayerInput, Tensor]] | None = None
    ) -> Iterator[None]:
        """Context for one pass with refreshed statistics and ρ = `share`.

        `share` is a device tensor, so that replays of a CUDA graph can use different values. Where the fused kernel is
        available, it computes batch statistics and output in one launch. The statistics of the `collected` inputs are
        then mixed for all layers together at the end of the context.
        """
        self.copies.refresh()
        self.collected, self._share, self._unmixed = collected, share, []
        try:
            yield
            if self._unmixed:
                copies, batch = zip(*self._unmixed, strict=True)
                ema_update(copies, batch, share[0])
        finally:
            self.collected, self._share, self._unmixed = None, None, []

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise `x` with the mixed statistics."""
        if batchnorm.has_too_few_values(x):
            return batchnorm.EVAL(layer, x)
        mean, var = self.copies.take(layer)
        if self.collected is None or x.ndim == 2:  # vectors have no statistics per image
            return self._normalise(layer, x, mean, var)
        layer_input = LayerInput(layer, x, mean, var)
        y = batch_norm_with_added_gradient(layer_input, lambda x: self._normalise(layer, x, mean, var))
        self.collected.append((layer_input, y))
        return y

    def _normalise(self, layer: _BatchNorm, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """Normalise, and change `mean` and `var` from source to mixed statistics, now or at the end of the pass."""
        if self._share is None:
            torch.batch_norm_update_stats(x.detach(), mean, var, self.rho)
            return batchnorm.batch_norm(layer, x, mean, var)
        fused = None if torch.is_grad_enabled() else fused_kernel_for(layer, x)
        if fused is None:
            batch = torch.zeros_like(mean), torch.zeros_like(var)
            torch.batch_norm_update_stats(x.detach(), *batch, 1.0)
            ema_update((mean, var), batch, self._share[0])
            return batchnorm.batch_norm(layer, x, mean, var)
        y, batch_mean, batch_var = fused(layer, x, self._share, None)
        if self.collected is not None:
            self._unmixed += [(mean, batch_mean[0]), (var, batch_var[0])]
        return y.data  # not a view for autograd: a custom function must not return a view


def fused_kernel_for(layer: _BatchNorm, x: Tensor) -> grouped.Normalise | None:
    """The fused kernel if it is available and supports this layer and input, else None."""
    if not x.is_cuda or x.ndim != 4 or x.dtype != torch.float32 or layer._parameters["weight"] is None:
        return None
    return grouped.fused_kernel()


class SourceAndMixMode:
    """Normalises interleaved pairs of images with source and with mixed statistics in one pass.

    The batch contains every image twice in succession. The first of each pair is normalised with the source statistics
    and the second with the mixture of source and batch statistics. For BatchNorm a pair is one image with twice the
    channels. The network must be frozen; call `copies.refresh()` before each pass.
    """

    def __init__(self, network: nn.Module, rho: float) -> None:
        self.rho, self.copies = rho, StatisticsCopies(network, 2)
        self._affine = {
            layer: tuple(None if p is None else p.detach().repeat(2) for p in (layer.weight, layer.bias))
            for layer in batchnorm.layers(network)
        }

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise the interleaved pairs in `x`."""
        c = x.shape[1]
        if batchnorm.has_too_few_values(x[::2]):
            return batchnorm.EVAL(layer, x)
        mean, var = self.copies.take(layer)
        wide = x.reshape(len(x) // 2, 2 * c, *x.shape[2:])
        torch.batch_norm_update_stats(wide[:, c:], mean[c:], var[c:], self.rho)
        cudnn, (weight, bias) = torch.backends.cudnn.enabled, self._affine[layer]
        return torch.batch_norm(wide, weight, bias, mean, var, False, 0.0, layer.eps, cudnn).view_as(x)


def concat_channels(statistics: Iterable[Tensor]) -> Float[Tensor, "*b channels"]:
    """The statistics of all layers as one tensor, concatenated along the channels."""
    return torch.cat(list(statistics), -1)


def channel_weights_and_counts(
    inputs: Sequence[Tensor], images: int
) -> tuple[Float[Tensor, "channels"], Float[Tensor, "channels"]]:
    """For each channel of all layers its weight in the mean over its layer, and its number of values.

    The number of values is that of a statistic over `images` images.
    """
    shapes = tuple((x.shape[1], images * x[0, 0].numel()) for x in inputs)
    return _weights_and_counts(shapes, inputs[0].device)


@cache  # unbounded, because captured CUDA graphs keep using these tensors
def _weights_and_counts(shapes: tuple[tuple[int, int], ...], device: torch.device) -> Pair:
    widths = torch.tensor([width for width, _ in shapes])
    weights, counts = 1 / widths, torch.tensor([float(count) for _, count in shapes])
    return weights.repeat_interleave(widths).to(device), counts.repeat_interleave(widths).to(device)


def loss_with_linear_gradient(
    loss: Float[Tensor, ""],
    a: Float[Tensor, "#b channels"],
    c: Float[Tensor, "#b channels"],
    inputs: Sequence[Tensor],
) -> Float[Tensor, ""]:
    """The value `loss`, with the gradient a·x + c at each input x; a and c hold the channels of all inputs."""
    return _LinearGradient.apply(loss, torch.stack([a, c]), *inputs)  # type: ignore[no-untyped-call,no-any-return]


class _LinearGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, coefficients: Tensor, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(coefficients, *inputs)
        return loss.clone()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        coefficients, *inputs = ctx.saved_tensors
        by_layer = (coefficients * gradient).split([x.shape[1] for x in inputs], -1)
        gradients: list[Tensor | None] = [None, None]
        for x, layer in zip(inputs, by_layer, strict=True):
            a, c = layer[(..., *[None] * (x.ndim - 2))]
            gradients.append(torch.addcmul(c, a, x))
        return tuple(gradients)
