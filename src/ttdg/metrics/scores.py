"""One call for a batch, and the rules for means over images."""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxtyping import Bool, Float, Integer
from torch import Tensor

from ttdg.errors import UserError
from ttdg.metrics.alignment import alignment_of
from ttdg.metrics.histogram import histogram
from ttdg.metrics.overlap import dice_of
from ttdg.metrics.regions import region_masks, region_probabilities
from ttdg.metrics.structure import structure
from ttdg.types import Regions


@dataclass(frozen=True)
class Scores:
    """Of each image and region, 0 to 1."""

    dice: Float[Tensor, "b r"]
    alignment: Float[Tensor, "b r 256"]  # E_φ by threshold; the maximum is the set's, not the image's
    structure: Float[Tensor, "b r"]


@dataclass(frozen=True)
class Means:
    """Of each region, over a set of images that all count the same, found or missed."""

    images: int
    dice: Float[Tensor, "r"]
    alignment: Float[Tensor, "r"]  # E_φ^max
    structure: Float[Tensor, "r"]


def score(logits: Float[Tensor, "b c h w"], labels: Integer[Tensor, "b h w"], regions: Regions) -> Scores:
    """Dice, E_φ curves and S_α of a network's answer to a batch."""
    return score_regions(region_probabilities(logits, regions), region_masks(labels, regions))


def score_regions(probabilities: Float[Tensor, "b r h w"], truth: Bool[Tensor, "b r h w"]) -> Scores:
    """Dice, E_φ curves and S_α of maps from anywhere; Dice and E_φ share one look at the pixels."""
    counts = histogram(probabilities, truth)
    return Scores(dice_of(counts), alignment_of(counts), structure(probabilities, truth))


def aggregate(batches: Iterable[Scores]) -> Means:
    """Means over all images of all batches; for E_φ, the maximum of the mean curve. Keeps only sums."""
    images, sums = 0, None
    for batch in batches:
        images += len(batch.dice)
        part = [values.sum(0) for values in (batch.dice, batch.alignment, batch.structure)]
        sums = part if sums is None else [a + b for a, b in zip(sums, part, strict=True)]
    if sums is None or images == 0:
        raise UserError("there are no scored images to average; check that the site has images with masks")
    dice, curve, structure = (total / images for total in sums)
    return Means(images, dice, curve.amax(-1), structure)
