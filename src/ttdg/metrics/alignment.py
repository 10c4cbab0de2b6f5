"""Enhanced-alignment measure E_φ (Fan et al., IJCAI 2018) at the 256 thresholds k/255."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ttdg.metrics.chunks import one_thread
from ttdg.metrics.histogram import histogram

EPSILON = torch.finfo(torch.float64).eps


def alignment_curve(
    probabilities: Float[Tensor, "b r h w"], truth: Bool[Tensor, "b r h w"]
) -> Float[Tensor, "b r 256"]:
    """E_φ of the masks [p >= k/255] for k = 0…255.

    The maps are not rescaled; the official tool first stretches each map to [0, 1]. As in the official tool, the sum is
    divided by N - 1, so that a perfect mask of N pixels scores N/(N-1).
    """
    return alignment_from_histogram(histogram(probabilities, truth))


def max_alignment(curves: Float[Tensor, "b r 256"]) -> Float[Tensor, "r"]:
    """E_φ^max of a set of images: the maximum of the mean curve, not the mean of the maxima."""
    return curves.mean(0).amax(-1)


@one_thread()
def alignment_from_histogram(counts: Int[Tensor, "b r 2 511"]) -> Float[Tensor, "b r 256"]:
    """E_φ at each threshold, from `histogram`."""
    above = counts.flip(-1).cumsum(-1).flip(-1)[..., ::2]  # pixels with p >= k/255
    false, true = above.double().unbind(-2)
    background, foreground = counts.sum(-1, keepdim=True).double().unbind(-2)
    return alignment(true, false, foreground, background)


def alignment(
    true: Float[Tensor, "*n"],
    false: Float[Tensor, "*n"],
    foreground: Float[Tensor, "*#n"],
    background: Float[Tensor, "*#n"],
    epsilon: float = EPSILON,
) -> Float[Tensor, "*n"]:
    """E_φ of a mask from four pixel counts.

    Args:
        true: predicted pixels that are foreground in the truth.
        false: predicted pixels that are background in the truth.
        foreground: foreground pixels of the truth.
        background: background pixels of the truth.
        epsilon: added to the denominator.
    """
    pixels = foreground + background
    F, G = (true + false) / pixels, foreground / pixels  # μ_F, μ_G
    counts = torch.stack((true, false, foreground - true, background - false))
    a, b = torch.stack((1 - F, 1 - F, -F, -F)), torch.stack((1 - G, -G, 1 - G, -G))
    alignment = 2 * a * b / (a**2 + b**2 + epsilon)  # ξ
    total = (counts * (1 + alignment) ** 2 / 4).sum(0)  # Σφ
    total = (background - false).where(foreground == 0, total)  # φ = 1 - F
    total = true.where(background == 0, total)  # φ = F
    return total / (pixels - 1).clamp(min=1)
