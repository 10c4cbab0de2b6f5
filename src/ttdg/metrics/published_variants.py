"""Variants of Dice, E and S that other papers report, for comparison with their tables only.

VPTTA and the code of TTDG-MGM binarise the map at 1/2 first, add 1e-8 where the definitions need no such term, and
mix variances over N with covariances over N - 1.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.metrics.alignment import alignment
from ttdg.metrics.structure import similarity

EPSILON = 1e-8
CONFIDENT = 0.9
"""Mean probability from which the code of TTDG-MGM counts a predicted instance."""


def alignment_vptta(
    prediction: Bool[Tensor, "b r h w"], truth: Bool[Tensor, "b r h w"]
) -> Float[Tensor, "b r"]:
    """E_φ of a binary mask at the adaptive threshold, twice its mean, which turns an empty mask into a full one."""
    empty = ~prediction.flatten(2).any(-1)[..., None, None]
    mask = prediction | empty
    true, false = (mask & truth).flatten(2).sum(-1), (mask & ~truth).flatten(2).sum(-1)
    foreground, background = truth.flatten(2).sum(-1), (~truth).flatten(2).sum(-1)
    counts = torch.stack((true, false, foreground, background)).double()
    return alignment(counts[0], counts[1], counts[2], counts[3], EPSILON)


def structure_vptta(
    probabilities: Float[Tensor, "b r h w"], truth: Bool[Tensor, "b r h w"]
) -> Float[Tensor, "b r"]:
    """S_α with ddof 0 and without the clip at 0; the published code passes binary masks."""
    return similarity(probabilities, truth, ddof=0, epsilon=EPSILON)


def instance_dice(
    probability: Float[np.ndarray, "h w"], truth: Bool[np.ndarray, "h w"], confident: float = CONFIDENT
) -> tuple[float, int]:
    """Mean Dice over the confident predicted instances, and their number; (NaN, 0) if there are none.

    Each predicted instance is scored against the true instance that fits best. Missed structures do not count.
    """
    from scipy import ndimage

    predicted, count = ndimage.label(probability >= 0.5)
    true, _ = ndimage.label(truth)
    sizes = np.bincount(true.ravel())
    scores = []
    for instance in range(1, count + 1):
        inside = predicted == instance
        if probability[inside].mean() >= confident:
            scores.append(_best(np.bincount(true[inside], minlength=len(sizes)), sizes, int(inside.sum())))
    return (float(np.mean(scores)), len(scores)) if scores else (float("nan"), 0)


def _best(shared: np.ndarray, sizes: np.ndarray, area: int) -> float:
    """Largest Dice of a predicted instance with any true one; 0 if there is none.

    `shared` counts its pixels per true instance, `sizes` the pixels of each true instance, `area` its own.
    """
    return float((2 * shared[1:] / (sizes[1:] + area)).max(initial=0.0))
