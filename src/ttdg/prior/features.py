"""The feature maps of a network that the morphology prior reads."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from ttdg.errors import UserError
from ttdg.networks.segmenter import pad_to_stride


def feature_maps(
    network: Any, images: Float[Tensor, "b c h w"]
) -> tuple[Float[Tensor, "b l h w"], dict[str, Tensor]]:
    """Logits and feature maps by level, from one forward pass.

    Images may have any size: the maps are those of the padded images, and the logits are cropped to the images.
    """
    if not hasattr(network, "decoded"):
        raise UserError(
            f"{type(network).__name__} has no encode/decoded/head methods, which the morphology prior needs; use "
            "ttdg.Segmenter, or a method that needs no prior"
        )
    h, w = images.shape[-2:]
    features = network.encode(pad_to_stride(images))
    decoded = network.decoded(features)
    maps = {f"e{i}": x for i, x in enumerate(features)} | {f"d{i}": x for i, x in enumerate(decoded)}
    return network.head(decoded[-1])[..., :h, :w], maps


def grid_size(maps: Mapping[str, Tensor], stride: int) -> tuple[int, int]:
    """(height, width) of the node grid of padded images."""
    y, x = next(iter(maps.values())).shape[2:]  # e0 has stride 2
    return 2 * y // stride, 2 * x // stride
