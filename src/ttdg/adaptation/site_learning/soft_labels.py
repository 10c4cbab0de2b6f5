"""Soft labels: a teacher's probabilities, sharpened and corrected by a guide, and the loss of a student."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.site_learning.strong_views import move_labels
from ttdg.networks.losses import soft_dice

AREA_STRIDE = 4  # of the pixels from which the areas of structures are estimated
AREA_ITERATIONS = 12  # of the fixed-point iteration that keeps areas
AREA_LIMIT = 3000.0  # largest factor of a channel

Labels = Float[Tensor, "n l h w"]
Weights = Float[Tensor, "n 1 h w"]  # of every pixel in the loss
Guide = tuple[Labels, Float[Tensor, "n 1 1 1"], Weights]  # labels, their share in [0, 1], and weights


def mirror_mean(logits: Float[Tensor, "m l h w"], head: losses.Head) -> Labels:
    """Return the mean probability over each image and its mirror image; mirror images are the second half."""
    upright, mirrored = losses.probabilities(logits, head).chunk(2)
    return (upright + mirrored.flip(3)) / 2


def sharpen(
    probabilities: Float[Tensor, "b l h w"], power: float, head: losses.Head, keep_areas: bool = False
) -> Float[Tensor, "b l h w"]:
    """Raise probabilities to a power and normalise: over the channels (softmax), or each against its complement.

    With `keep_areas`, each channel of each image is scaled before it is normalised, such that its mean stays what it
    was. Plain sharpening shrinks a structure whose probabilities are mostly below one half.
    """
    powered = probabilities**power
    if keep_areas:
        powered = powered * _area_factors(probabilities, power, head)
    if head == "softmax":
        return powered / powered.sum(1, keepdim=True).clamp(min=1e-12)
    return powered / (powered + (1 - probabilities) ** power).clamp(min=1e-12)


def _area_factors(probabilities: Labels, power: float, head: losses.Head) -> Float[Tensor, "b l 1 1"]:
    """Factors of the channels with which sharpening keeps their means, by fixed-point iteration on a sub-grid."""
    p = probabilities[..., ::AREA_STRIDE, ::AREA_STRIDE]
    powered, others = p**power, (1 - p) ** power
    target = p.mean((2, 3), keepdim=True).clamp(1e-6, 1 - 1e-6)
    factors = torch.ones_like(target)
    for _ in range(AREA_ITERATIONS):
        scaled = powered * factors
        total = scaled.sum(1, keepdim=True) if head == "softmax" else scaled + others
        mean = (scaled / total.clamp(min=1e-12)).mean((2, 3), keepdim=True).clamp(1e-6, 1 - 1e-6)
        ratio = target / mean if head == "softmax" else target * (1 - mean) / (mean * (1 - target))
        factors = (factors * ratio).clamp(1 / AREA_LIMIT, AREA_LIMIT)
    return factors


def place_weights(labels: Labels, reading: Labels) -> Weights:
    """Weight of every pixel: the agreement Σ_l y_l r_l of two soft labels, divided by its mean over the image.

    A reading that equals the labels gives Σ_l y_l², the confidence of the labels.
    """
    agreement = (labels * reading).sum(1, keepdim=True)
    return agreement / agreement.mean((2, 3), keepdim=True).clamp(min=1e-6)


def guided(labels: Labels, grid: Float[Tensor, "n h w 2"], *guide: Tensor) -> tuple[Labels, Weights | None]:
    """Blend labels with those of a `Guide`, if given, and move them and its weights to the student's view."""
    if not guide:
        return move_labels(labels, grid), None
    others, share, weights = guide
    moved = move_labels(torch.cat([labels.lerp(others, share), weights], 1), grid)
    return moved[:, :-1], moved[:, -1:]


def soft_label_loss(
    logits: Labels, labels: Labels, head: losses.Head, weights: Weights | None = None, dice: bool = True
) -> Float[Tensor, ""]:
    """Cross-entropy of a prediction against soft labels, plus 1 − soft Dice if `dice` is true.

    The background of a softmax head counts in the cross-entropy only. With weights, the cross-entropy is the weighted
    mean over the pixels. Each sum over pixels in soft Dice is weighted, and so is the mean over the images, by the mean
    weight of each image. If all weights are 0 the loss is NaN, and adapters skip the step.
    """
    logits = logits.float()
    if losses.uses_softmax(logits.shape[1], head):
        log_p = logits.log_softmax(1)
        loss = _mean(-(labels * log_p).sum(1, keepdim=True), weights)
        if not dice:
            return loss
        p, y = log_p.exp()[:, 1:], labels[:, 1:]
    else:
        bce = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        loss = _mean(bce, weights)
        if not dice:
            return loss
        p, y = logits.sigmoid(), labels
    if weights is None:
        return loss + _mean(1 - soft_dice(p, y), None)
    image_weights = weights.sum((2, 3)) / weights[0].numel()
    return loss + _mean(1 - _weighted_dice(p, y, weights), image_weights)


def _mean(values: Float[Tensor, "n k *hw"], weights: Float[Tensor, "n 1 *hw"] | None) -> Float[Tensor, ""]:
    """Weighted mean; weights of 1 give exactly the plain mean."""
    if weights is None:
        return values.sum() / values.numel()
    return (weights * values).sum() / (weights.sum() * values.shape[1])


def _weighted_dice(p: Labels, y: Labels, weights: Weights, smooth: float = 1.0) -> Float[Tensor, "n l"]:
    """Soft Dice of each image and channel, with a weight for every pixel."""
    overlap = (weights * (p * y)).sum((2, 3))
    sizes = (weights * p).sum((2, 3)) + (weights * y).sum((2, 3))
    return (2 * overlap + smooth) / (sizes + smooth)
