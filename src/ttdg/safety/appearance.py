"""The appearance of images: light, colours and sharpness as a few numbers."""

import torch
from jaxtyping import Float
from torch import Tensor

APPEARANCE = "appearance"  # name of this description


def describe(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b f"]:
    """Mean and deviation of each colour, and the logarithm of the mean gradients and curvature of the grey image.

    Images are in [0, 1]. Images that do not have three channels are described by their mean channel.
    """
    grey = images.mean(1)
    images = images if images.shape[1] == 3 else grey[:, None].expand(-1, 3, -1, -1)
    dx, dy = grey.diff(dim=2), grey.diff(dim=1)
    curvature = dx.diff(dim=2)[:, 1:-1] + dy.diff(dim=1)[:, :, 1:-1]
    texture = torch.stack([x.abs().mean((1, 2)) for x in (dx, dy, curvature)], 1)
    return torch.cat([images.mean((2, 3)), images.std((2, 3), correction=0), (texture + 1e-3).log()], 1)
