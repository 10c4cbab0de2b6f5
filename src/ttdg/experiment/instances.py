"""The official code's way of scoring, under its own name, so that its numbers can be compared with what they are.

There only predicted instances with a confidence of at least 0.9 are scored, each by its best Dice with a true instance
of the class, and the mean is over predictions: a missed structure contributes nothing. It is therefore never
called Dice here. A segmentation network predicts no instances; ours are the connected parts of the predicted region,
with their mean probability as confidence.
"""

import numpy as np
from jaxtyping import Bool, Float

CONFIDENT = 0.9


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
