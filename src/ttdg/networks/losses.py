"""Supervised losses L_sup, and soft Dice. Each loss is a mean over images, so that processes can average it."""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

Logits = Float[Tensor, "b c h w"]
Labels = Int[Tensor, "b h w"]
Maps = Float[Tensor, "b c h w"]  # of probabilities, or of labels that may be soft


def cross_entropy(logits: Logits, labels: Labels) -> Float[Tensor, ""]:
    """Pixel-wise cross-entropy; `F.cross_entropy` is not deterministic for images on a GPU."""
    return -(one_hot(logits, labels) * F.log_softmax(logits, 1)).sum(1).mean()


def soft_dice_loss(logits: Logits, labels: Labels, smooth: float = 1.0) -> Float[Tensor, ""]:
    """Return 1 − soft Dice, averaged over images and foreground labels.

    `smooth` is added to numerator and denominator, so that a label absent from an image costs about 0 instead of 1.
    """
    return (1 - soft_dice(logits.softmax(1)[:, 1:], one_hot(logits, labels)[:, 1:], smooth)).mean()


def soft_dice(a: Maps, b: Maps, smooth: float = 1.0) -> Float[Tensor, "b c"]:
    """Return (2 Σ a·b + smooth) / (Σ a + Σ b + smooth) of each image and channel; sums run over the pixels."""
    overlap = (a * b).sum((2, 3))
    sizes = a.sum((2, 3)) + b.sum((2, 3))
    return (2 * overlap + smooth) / (sizes + smooth)


def one_hot(logits: Logits, labels: Labels) -> Logits:
    """Encode labels as one channel per class, with the shape and dtype of the logits."""
    return F.one_hot(labels, logits.shape[1]).movedim(-1, 1).to(logits)


def dice_cross_entropy(logits: Logits, labels: Labels) -> Float[Tensor, ""]:
    """Return the sum of cross-entropy and soft Dice loss."""
    return cross_entropy(logits, labels) + soft_dice_loss(logits, labels)


LOSSES: dict[str, Callable[[Logits, Labels], Tensor]] = {"ce": cross_entropy, "dice+ce": dice_cross_entropy}
