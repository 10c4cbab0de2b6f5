"""Scores of a batch in one call, and their means over images."""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxtyping import Bool, Float, Integer
from torch import Tensor

from ttdg.errors import UserError
from ttdg.metrics.alignment import alignment_from_histogram
from ttdg.metrics.histogram import histogram
from ttdg.metrics.overlap import dice_from_histogram
from ttdg.metrics.regions import region_masks, region_probabilities
from ttdg.metrics.structure import structure
from ttdg.types import Regions


@dataclass(frozen=True)
class Scores:
    """Scores per image and region, from 0 to 1."""

    dice: Float[Tensor, "b r"]
    alignment: Float[
        Tensor, "b r 256"
    ]  # E_φ per threshold; its maximum is taken over a set of images, not per image
    structure: Float[Tensor, "b r"]


@dataclass(frozen=True)
class Means:
    """Means per region over a set of images with equal weight, including images whose structure was missed."""

    images: int
    dice: Float[Tensor, "r"]
    alignment: Float[Tensor, "r"]  # E_φ^max
    structure: Float[Tensor, "r"]


def score(logits: Float[Tensor, "b c h w"], labels: Integer[Tensor, "b h w"], regions: Regions) -> Scores:
    """Dice, E_φ curves and S_α of a network's prediction for a batch."""
    return score_regions(region_probabilities(logits, regions), region_masks(labels, regions))


def score_regions(probabilities: Float[Tensor, "b r h w"], truth: Bool[Tensor, "b r h w"]) -> Scores:
    """Dice, E_φ curves and S_α of probability maps; Dice and E_φ share one histogram of the pixels."""
    counts = histogram(probabilities, truth)
    return Scores(
        dice_from_histogram(counts), alignment_from_histogram(counts), structure(probabilities, truth)
    )


def aggregate(batches: Iterable[Scores]) -> Means:
    """Means over all images of all batches; for E_φ the maximum of the mean curve. Stores only sums."""
    images, sums = 0, None
    for batch in batches:
        images += len(batch.dice)
        part = [values.sum(0) for values in (batch.dice, batch.alignment, batch.structure)]
        sums = part if sums is None else [a + b for a, b in zip(sums, part, strict=True)]
    if sums is None or images == 0:
        raise UserError("there are no scored images to average; check that the site has images with masks")
    dice, curve, structure = (total / images for total in sums)
    return Means(images, dice, curve.amax(-1), structure)
