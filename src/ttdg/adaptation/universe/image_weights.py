"""How much an image of a site counts: the Dice that the judge expects, or a control that needs no judge."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from ttdg.networks.losses import soft_dice

ImageWeights = Literal["expected", "uniform", "confidence", "consistency"]

Probabilities = Float[Tensor, "b l h w"]  # of a softmax; the first label is the background


def structure_confidence(probabilities: Probabilities) -> Float[Tensor, " b"]:
    """Mean of the largest probability over the pixels that are predicted as a structure; over all if there are none."""
    largest, label = probabilities.max(1)
    inside = (label > 0).to(largest) + 1e-6
    return (largest * inside).sum((1, 2)) / inside.sum((1, 2))


def mirror_consistency(upright: Probabilities, mirrored: Probabilities) -> Float[Tensor, " b"]:
    """Soft Dice of the structures in the predictions of an image and of its mirror image, mirrored back."""
    a, b = upright[:, 1:], mirrored[:, 1:]
    return (2 * soft_dice(a, b) / (soft_dice(a, a) + soft_dice(b, b)).clamp(min=1e-6)).mean(1).clamp(0, 1)
