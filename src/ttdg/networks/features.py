"""Feature maps by level: those that a network offers itself, or the outputs of its modules.

A `Segmenter` names its levels: e0 to e4 are the maps of the encoder, d0 to d4 those of the decoder. In any other
network a level is a module, and its name is that of `network.named_modules()` (`ttdg.networks.taps`). The level "input"
is the input of the network, padded where the network pads it; all maps cover it.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.networks.segmenter import pad_to_stride
from ttdg.networks.taps import tapped

INPUT = "input"  # the level from which the size of the node grid follows


def feature_maps(
    network: Any, images: Float[Tensor, "b c h w"], levels: Iterable[str] = ()
) -> tuple[Float[Tensor, "b l h w"], dict[str, Tensor]]:
    """Logits and feature maps by level, from one forward pass.

    Images may have any size that the network accepts: the maps are those of the padded images, and the logits are
    cropped to the images. `levels` are the modules to read; a network with levels of its own returns all of them.
    """
    if not hasattr(network, "decoded"):
        logits, maps = tapped(network, images, levels)
        return logits, {INPUT: images, **maps}
    h, w = images.shape[-2:]
    padded = pad_to_stride(images)
    features = network.encode(padded)
    decoded = network.decoded(features)
    maps = {f"e{i}": x for i, x in enumerate(features)} | {f"d{i}": x for i, x in enumerate(decoded)}
    return network.head(decoded[-1])[..., :h, :w], {INPUT: padded, **maps}


@torch.no_grad()
def level_channels(
    network: Any, images: Float[Tensor, "b c h w"] | None = None, levels: Iterable[str] = ()
) -> dict[str, int]:
    """Number of channels of every level, read from `images`, or for a `Segmenter` from an image of zeros."""
    training, device = network.training, next(network.parameters()).device
    if images is None:
        images = torch.zeros(1, network.spec.channels, 64, 64, device=device)
    network.eval()
    maps = feature_maps(network, images, levels)[1]
    network.train(training)
    return {name: x.shape[1] for name, x in maps.items() if name != INPUT}
