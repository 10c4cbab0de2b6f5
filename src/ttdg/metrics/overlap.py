"""Dice coefficient."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from ttdg.metrics.histogram import HALF, histogram


def dice(probabilities: Float[Tensor, "b r h w"], truth: Bool[Tensor, "b r h w"]) -> Float[Tensor, "b r"]:
    """2|P∩G| / (|P|+|G|) with P = [p >= 1/2]; 1 if both masks are empty, 0 if exactly one is."""
    return dice_from_histogram(histogram(probabilities, truth))


def dice_from_histogram(counts: Int[Tensor, "b r 2 511"]) -> Float[Tensor, "b r"]:
    """Dice at threshold 1/2, from `histogram`."""
    false, true = counts[..., HALF:].sum(-1).double().unbind(-1)
    both = false + true + counts[:, :, 1].sum(-1)  # |P| + |G|
    return (2 * true / both).where(both > 0, 1)
