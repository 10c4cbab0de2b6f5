"""Find the modules that produce the levels of an encoder's feature pyramid.

The modules are found by running the encoder once, so any network with `encode` is supported. A forward hook on such a
module can read or change the feature map before the next level uses it, or stop the pass.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.errors import UserError

Images = Float[Tensor, "b c h w"]

SIDE = 64  # side of the noise image that is encoded to find the modules


class _Reached(Exception):
    """Carries the output of a module out of a forward pass that is stopped there."""

    def __init__(self, feature: Tensor) -> None:
        self.feature = feature


def encode_to(network: Any, producer: nn.Module, images: Images) -> Tensor:
    """The output of one module of the encoder; later modules are not computed.

    The sides of the images must be multiples of the deepest stride.
    """

    def stop(module: nn.Module, inputs: Any, output: Tensor) -> None:
        raise _Reached(output)

    handle = producer.register_forward_hook(stop)
    try:
        network.encode(images)
    except _Reached as reached:
        return reached.feature
    finally:
        handle.remove()
    raise AssertionError("the encoder did not run this module")


@torch.no_grad()
def level_modules(network: Any) -> list[tuple[nn.Module, Tensor]]:
    """For each level the module that produces it, and its output for a noise image.

    BatchNorm must be in EVAL mode; otherwise this call changes its running statistics.
    """
    calls: list[tuple[nn.Module, Tensor]] = []  # keeps the outputs alive, so that `is` identifies them

    def collect(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            calls.append((module, output))

    handles = [module.register_forward_hook(collect) for module in network.modules()]
    try:
        levels = network.encode(noise_image(network))
    finally:
        for handle in handles:
            handle.remove()
    called = [module for module, _ in calls]
    producers = [[module for module, output in calls if output is level] for level in levels]
    if not all(modules and called.count(modules[-1]) == 1 for modules in producers):
        raise UserError(
            f"{type(network).__name__}.encode returns a map that is not the output of a module, or of a module that "
            "runs more than once; make each level the output of one module, such as an nn.Sequential"
        )
    # Of nested modules with the same output the outermost finishes last.
    return [(modules[-1], level) for modules, level in zip(producers, levels, strict=True)]


def parameters_before(network: nn.Module, producer: nn.Module) -> list[nn.Parameter]:
    """The parameters on which a module's output depends: those of this module and of earlier ones."""
    parameters = list(network.parameters())
    flags = [parameter.requires_grad for parameter in parameters]
    network.requires_grad_(True)
    with torch.enable_grad():
        feature = encode_to(network, producer, noise_image(network))
        gradients = torch.autograd.grad(feature.sum(), parameters, allow_unused=True)
    for parameter, flag in zip(parameters, flags, strict=True):
        parameter.requires_grad_(flag)
    return [p for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None]


def noise_image(network: nn.Module) -> Images:
    """A noise image with as many channels as the network's first convolution expects."""
    first = next(m for m in network.modules() if isinstance(m, nn.Conv2d))
    noise = torch.randn(1, first.in_channels, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return noise.to(first.weight)
