"""Run a network with its BatchNorm layers folded into the convolutions before them.

With fixed statistics μ and v, BatchNorm after a convolution is the same convolution with other weights:

    γ (W∗x − μ) / √(v+ε) + β = (sW)∗x + (β − sμ),   s = γ / √(v+ε)

A pass then reads and writes every feature map once less. Gradients reach W, γ and β through sW and β − sμ, which are
small. Values differ from those of the unfolded pass by rounding.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from ttdg.networks import batchnorm
from ttdg.networks.batchnorm import EvalMode, running_statistics

TOLERANCE = 0.02  # largest difference of a folded pass, relative to the largest output; TF32 rounds at 1e-3
SIDE = 64  # of the image of noise


class NormedConvolution(NamedTuple):
    """A convolution whose output goes to a BatchNorm layer."""

    convolution: _ConvNd
    norm: _BatchNorm


class FoldedNetwork:
    """A network whose passes are folded wherever a convolution is followed by BatchNorm in EVAL mode."""

    def __init__(self, network: nn.Module) -> None:
        self.network, self._pairs = network, find_pairs(network)

    def __call__(self, images: Tensor) -> Tensor:
        """The network's output."""
        with folded(self._pairs):
            return self.network(images)


@torch.no_grad()
def find_pairs(network: nn.Module) -> Sequence[NormedConvolution]:
    """Find the convolutions that can be folded, by passes over an image of noise in the precision of the weights.

    There are none if folding changes the result, because the output of a convolution is also used elsewhere, or if the
    network does not accept images of this size.
    """
    outputs: dict[int, tuple[_ConvNd, Tensor]] = {}  # the tensors are kept, so that no address is used twice
    pairs: list[NormedConvolution] = []

    def after_convolution(module: nn.Module, _: object, output: Tensor) -> None:
        assert isinstance(module, _ConvNd)
        outputs[id(output)] = module, output

    def before_norm(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, _BatchNorm)
        found = outputs.get(id(inputs[0]))
        if found and isinstance(module.__dict__.get("mode"), EvalMode) and module.affine:
            pairs.append(NormedConvolution(found[0], module))

    first = next((module for module in network.modules() if isinstance(module, nn.Conv2d)), None)
    if first is None or not batchnorm.has_layers(network):
        return []
    noise = torch.rand(1, first.in_channels, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    images = noise.to(first.weight)
    with ExitStack() as hooks, torch.autocast(images.device.type, enabled=False):
        for module in network.modules():
            if isinstance(module, _ConvNd) and not module.transposed:
                hooks.callback(module.register_forward_hook(after_convolution).remove)
            elif isinstance(module, _BatchNorm):
                hooks.callback(module.register_forward_pre_hook(before_norm).remove)
        try:
            expected = network(images)
        except RuntimeError:  # of another kind of image
            return []
    if not isinstance(expected, Tensor):
        return []
    counts = Counter(id(module) for pair in pairs for module in pair)
    once = [pair for pair in pairs if all(counts[id(module)] == 1 for module in pair)]
    with folded(once), torch.autocast(images.device.type, enabled=False):
        difference = (network(images) - expected).abs().max()
    return once if difference <= TOLERANCE * expected.abs().max() else []


@contextmanager
def folded(pairs: Sequence[NormedConvolution]) -> Iterator[None]:
    """Context in which the convolutions normalise, and the BatchNorm layers pass their input on."""
    for pair in pairs:
        convolution, norm = pair
        convolution._conv_forward, norm.forward = _Folded(pair), _unchanged  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        for convolution, norm in pairs:
            del convolution._conv_forward, norm.forward


class _Folded:
    """`_conv_forward` of a convolution that also normalises."""

    def __init__(self, pair: NormedConvolution) -> None:
        self.convolution, self.norm = pair

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        mean, var = running_statistics(self.norm)
        scale = self.norm.weight * torch.rsqrt(var + self.norm.eps)
        shift = self.norm.bias - mean * scale
        if bias is not None:
            shift = shift + bias * scale
        weight = weight * scale.view(-1, *[1] * (weight.ndim - 1))
        return type(self.convolution)._conv_forward(self.convolution, x, weight, shift)  # type: ignore[attr-defined,no-any-return]


def _unchanged(x: Tensor) -> Tensor:
    return x
