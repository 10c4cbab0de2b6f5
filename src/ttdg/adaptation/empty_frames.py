"""Frames that show nothing: one value in every channel, or noise. The rules do not depend on the range of the values.

`ttdg.data.unlabelled.kind` has stricter rules for image files, whose grey values are known.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.adaptation.abilities import Images

LEAST_DEVIATION = 1e-3  # of the largest absolute value; photographs, slices and drawings have more than 0.03
LEAST_CORRELATION = (
    0.1  # between pixels at a distance of 1/32 of the side; medical images have more than 0.45
)
LEAST_SIDE = 96  # pixels; noise is looked for in images of at least this side, which networks of medical images receive


def shows_nothing(images: Images) -> Bool[Tensor, " b"]:
    """Return which images hold one value in every channel, or noise. A volume counts its slices as channels."""
    if not len(images):
        return torch.zeros(0, dtype=torch.bool, device=images.device)
    x = images.detach().float().flatten(1, -3)
    deviation = x.var((2, 3), correction=0).mean(1).sqrt()
    constant = deviation <= LEAST_DEVIATION * x.abs().amax((1, 2, 3))
    if min(x.shape[2:]) < LEAST_SIDE:
        return constant
    few = x[:, :, :: x.shape[2] // LEAST_SIDE, :: x.shape[3] // LEAST_SIDE]  # enough to measure a correlation
    few = few - few.mean((2, 3), keepdim=True)
    return constant | (torch.maximum(_correlation(few), _correlation(few.mT)) < LEAST_CORRELATION)


def _correlation(centred: Float[Tensor, "b c h w"]) -> Float[Tensor, " b"]:
    """Return the correlation of pixels with those 1/32 of the height below."""
    distance = max(2, centred.shape[2] // 32)
    above, below = centred[:, :, :-distance], centred[:, :, distance:]
    scale = (above.square().mean((1, 2, 3)) * below.square().mean((1, 2, 3))).sqrt()
    return (above * below).mean((1, 2, 3)) / scale.clamp(min=1e-30)
