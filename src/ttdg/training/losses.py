"""Supervised losses L_sup. Each is a mean over images, so that it can be averaged over processes."""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

Logits = Float[Tensor, "b c h w"]
Labels = Int[Tensor, "b h w"]


def cross_entropy(logits: Logits, labels: Labels) -> Float[Tensor, ""]:
    """Pixel-wise cross-entropy; `F.cross_entropy` is not deterministic for images on a GPU."""
    return -(one_hot(logits, labels) * F.log_softmax(logits, 1)).sum(1).mean()


def soft_dice_loss(logits: Logits, labels: Labels, smooth: float = 1.0) -> Float[Tensor, ""]:
    """Return 1 − soft Dice, averaged over images and foreground labels.

    `smooth` is added to numerator and denominator, so that a label absent from an image costs about 0 instead of 1.
    """
    p = logits.softmax(1)[:, 1:]
    truth = one_hot(logits, labels)[:, 1:]
    overlap = (p * truth).sum((2, 3))
    sizes = p.sum((2, 3)) + truth.sum((2, 3))
    return (1 - (2 * overlap + smooth) / (sizes + smooth)).mean()


def one_hot(logits: Logits, labels: Labels) -> Logits:
    """Encode labels as one channel per class, with the shape and dtype of the logits."""
    return F.one_hot(labels, logits.shape[1]).movedim(-1, 1).to(logits)


def dice_cross_entropy(logits: Logits, labels: Labels) -> Float[Tensor, ""]:
    """Return the sum of cross-entropy and soft Dice loss."""
    return cross_entropy(logits, labels) + soft_dice_loss(logits, labels)


LOSSES: dict[str, Callable[[Logits, Labels], Tensor]] = {"ce": cross_entropy, "dice+ce": dice_cross_entropy}
