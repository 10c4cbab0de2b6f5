"""Feature maps by level: e0 to e4 are the maps of the encoder, d0 to d4 those of the decoder."""

from typing import Any

import torch
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
            "ttdg.Segmenter or ttdg.Classifier, or a method that needs no prior"
        )
    h, w = images.shape[-2:]
    features = network.encode(pad_to_stride(images))
    decoded = network.decoded(features)
    maps = {f"e{i}": x for i, x in enumerate(features)} | {f"d{i}": x for i, x in enumerate(decoded)}
    return network.head(decoded[-1])[..., :h, :w], maps


@torch.no_grad()
def level_channels(network: Any) -> dict[str, int]:
    """Number of channels of every level of a network, read from a small image of zeros."""
    training, device = network.training, next(network.parameters()).device
    network.eval()
    maps = feature_maps(network, torch.zeros(1, network.spec.channels, 64, 64, device=device))[1]
    network.train(training)
    return {name: x.shape[1] for name, x in maps.items()}
