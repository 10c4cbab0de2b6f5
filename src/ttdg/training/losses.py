"""Supervised losses L_sup: means over images, so that they split over processes."""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

Logits = Float[Tensor, "b c h w"]
Labels = Int[Tensor, "b h w"]


def cross_entropy(logits: Logits, labels: Labels) -> Float[Tensor, ""]:
    """As `F.cross_entropy`, which has no deterministic form for images on a GPU."""
    return -(one_hot(logits, labels) * F.log_softmax(logits, 1)).sum(1).mean()


def soft_dice_loss(logits: Logits, labels: Labels, smooth: float = 1.0) -> Float[Tensor, ""]:
    """1 − soft Dice per image and foreground label; `smooth` keeps an absent label's loss near 0, not at 1."""
    p = logits.softmax(1)[:, 1:]
    truth = one_hot(logits, labels)[:, 1:]
    overlap = (p * truth).sum((2, 3))
    sizes = p.sum((2, 3)) + truth.sum((2, 3))
    return (1 - (2 * overlap + smooth) / (sizes + smooth)).mean()


def one_hot(logits: Logits, labels: Labels) -> Logits:
    return F.one_hot(labels, logits.shape[1]).movedim(-1, 1).to(logits)


def dice_cross_entropy(logits: Logits, labels: Labels) -> Float[Tensor, ""]:
    return cross_entropy(logits, labels) + soft_dice_loss(logits, labels)


LOSSES: dict[str, Callable[[Logits, Labels], Tensor]] = {"ce": cross_entropy, "dice+ce": dice_cross_entropy}
