"""A network in two halves: `encode(images)` gives maps from fine to deep, `decode(maps)` the logits.

Methods that look at the deepest map, or change it, need these. Halves take sides that are multiples of the
deepest stride only; here the border is repeated up to that and cut off again, as the whole network does it.
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
    """The network, if it has both halves; else an error in words."""
    if not (hasattr(network, "encode") and hasattr(network, "decode")):
        raise UserError(
            f"{type(network).__name__} has no encode and decode, which this method needs to look between its halves; "
            "give the network both, or use a method such as 'tent' that needs neither"
        )
    return network


def crop(logits: Float[Tensor, "b l y x"], images: Images) -> Float[Tensor, "b l h w"]:
    """The logits without what `padded` added."""
    return logits[..., : images.shape[-2], : images.shape[-1]]


def encode(network: Any, images: Images) -> Features:
    return tuple(network.encode(pad_to_stride(images)))


def decode(network: Any, features: Features, images: Images) -> Float[Tensor, "b l h w"]:
    """The logits, cut to the size of the images that were encoded."""
    return crop(network.decode(features), images)


def forward_split(
    network: Any, images: Images, change: Callable[[Features], Features] = lambda features: features
) -> Float[Tensor, "b l h w"]:
    """The whole network, with the maps changed between its halves."""
    return decode(network, change(encode(network, images)), images)


@contextmanager
def modules_used(network: nn.Module) -> Iterator[set[nn.Module]]:
    """The modules that run inside the block: the way to tell one half's weights from the other's."""
    seen: set[nn.Module] = set()
    handles = [module.register_forward_pre_hook(lambda m, _: seen.add(m)) for module in network.modules()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
