"""Run the two halves of a network, `encode` and `decode`, separately.

`network.encode(images)` returns feature maps from fine to deep; `network.decode(maps)` returns logits. Methods that
read or change the deepest map need both. The halves accept only images whose sides are multiples of the deepest stride.
The functions below pad images by repeating the border and crop the logits, as `Segmenter.forward` does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ttdg.errors import UserError
from ttdg.networks.segmenter import pad_to_stride

Features = tuple[Tensor, ...]
Images = Float[Tensor, "b c h w"]


def require_split(network: nn.Module) -> Any:
    """Return the network, or raise `UserError` if it has no `encode` and `decode`."""
    if not (hasattr(network, "encode") and hasattr(network, "decode")):
        raise UserError(
            f"{type(network).__name__} has no encode and decode, but this method works on the feature maps between "
            "them; give the network both methods, or use a method that does not need them, such as 'tent'"
        )
    return network


def crop(logits: Float[Tensor, "b l y x"], images: Images) -> Float[Tensor, "b l h w"]:
    """The logits without the border that `pad_to_stride` added to the images."""
    return logits[..., : images.shape[-2], : images.shape[-1]]


def encode(network: Any, images: Images) -> Features:
    """Feature maps of images of any size."""
    return tuple(network.encode(pad_to_stride(images)))


def decode(network: Any, features: Features, images: Images) -> Float[Tensor, "b l h w"]:
    """The logits of encoded images, cropped to the size of these images."""
    return crop(network.decode(features), images)


def forward_split(
    network: Any, images: Images, change: Callable[[Features], Features] = lambda features: features
) -> Float[Tensor, "b l h w"]:
    """Forward pass of the whole network with `change` applied to the feature maps."""
    return decode(network, change(encode(network, images)), images)


@contextmanager
def modules_used(network: nn.Module) -> Iterator[set[nn.Module]]:
    """The set of modules that run inside the context, for example to find the modules of the encoder."""
    used: set[nn.Module] = set()
    handles = [module.register_forward_pre_hook(lambda m, _: used.add(m)) for module in network.modules()]
    try:
        yield used
    finally:
        for handle in handles:
            handle.remove()
