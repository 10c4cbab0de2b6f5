"""The levels of an encoder's pyramid from inside: which module makes each, and what it depends on.

Found by running the encoder once, so that any network with `encode` will do. A hook at a level's module sees the map on
its way to the next, may change it there, or stop the pass.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.errors import UserError

Images = Float[Tensor, "b c h w"]

SIDE = 64  # of the image the encoder is probed with


class _Reached(Exception):
    def __init__(self, feature: Tensor) -> None:
        self.feature = feature


def encode_to(network: Any, producer: nn.Module, images: Images) -> Tensor:
    """The output of a module inside the encoder, of images it can take; nothing behind it is computed."""

    def stop(module: nn.Module, inputs: Any, output: Tensor) -> None:
        raise _Reached(output)

    handle = producer.register_forward_hook(stop)
    try:
        network.encode(images)
    except _Reached as reached:
        return reached.feature
    finally:
        handle.remove()
    raise AssertionError("the encoder did not run its own module")


@torch.no_grad()
def level_modules(network: Any) -> list[tuple[nn.Module, Tensor]]:
    """The module that makes each level, and what it made of a noise image. In EVAL, or statistics move."""
    seen: list[tuple[nn.Module, Tensor]] = []  # keeps the outputs alive, so that identities are unique

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            seen.append((module, output))

    handles = [module.register_forward_hook(note) for module in network.modules()]
    try:
        levels = network.encode(noise_image(network))
    finally:
        for handle in handles:
            handle.remove()
    calls = [module for module, _ in seen]
    found = [[module for module, output in seen if output is level] for level in levels]
    if not all(modules and calls.count(modules[-1]) == 1 for modules in found):
        raise UserError(
            f"{type(network).__name__}.encode returns a map that none of its modules made, or one made by a module it "
            "uses twice; let each level be the output of one module, such as an nn.Sequential"
        )
    return [
        (modules[-1], level) for modules, level in zip(found, levels, strict=True)
    ]  # the outermost ends last


def parameters_before(network: nn.Module, producer: nn.Module) -> list[nn.Parameter]:
    """The parameters a module's output depends on: its own and those before it."""
    every = list(network.parameters())
    flags = [parameter.requires_grad for parameter in every]
    network.requires_grad_(True)
    with torch.enable_grad():
        feature = encode_to(network, producer, noise_image(network))
        gradients = torch.autograd.grad(feature.sum(), every, allow_unused=True)
    for parameter, flag in zip(every, flags, strict=True):
        parameter.requires_grad_(flag)
    return [parameter for parameter, gradient in zip(every, gradients, strict=True) if gradient is not None]


def noise_image(network: nn.Module) -> Images:
    """A noise image of the channels that the network's first convolution takes."""
    first = next(m for m in network.modules() if isinstance(m, nn.Conv2d))
    noise = torch.randn(1, first.in_channels, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return noise.to(first.weight)
