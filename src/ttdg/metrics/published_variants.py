"""What other papers report under the names E and S, for comparison with their tables only.

VPTTA and the code of TTDG-MGM binarise the map at 1/2 first, add 1e-8 where the definitions need none, and
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


def alignment_vptta(
    prediction: Bool[Tensor, "b r h w"], truth: Bool[Tensor, "b r h w"]
) -> Float[Tensor, "b r"]:
    """E_φ at one threshold, twice the mean of a binary mask. An empty mask is so turned into a full one."""
    empty = ~prediction.flatten(2).any(-1)[..., None, None]
    mask = prediction | empty
    true, false = (mask & truth).flatten(2).sum(-1), (mask & ~truth).flatten(2).sum(-1)
    foreground, background = truth.flatten(2).sum(-1), (~truth).flatten(2).sum(-1)
    counts = torch.stack((true, false, foreground, background)).double()
    return alignment(counts[0], counts[1], counts[2], counts[3], EPSILON)


def structure_vptta(
    probabilities: Float[Tensor, "b r h w"], truth: Bool[Tensor, "b r h w"]
) -> Float[Tensor, "b r"]:
    """S_α with ddof 0 and without the clip at 0; they give it masks, as 0 and 1."""
    return similarity(probabilities, truth, ddof=0, epsilon=EPSILON)


def instance_dice(
    probability: Float[np.ndarray, "h w"], truth: Bool[np.ndarray, "h w"], confident: float = CONFIDENT
) -> tuple[float, int]:
    """(mean Dice of the confident predicted instances, how many there are); (NaN, 0) where there is none."""
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
    """Of one predicted instance with every true one; 0 where there is none."""
    return float((2 * shared[1:] / (sizes[1:] + area)).max(initial=0.0))
