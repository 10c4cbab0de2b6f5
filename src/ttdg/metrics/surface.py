"""Distances between the surfaces of masks or volumes, HD95 and ASSD, in pixels or physical units."""

import itertools
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from ttdg.metrics.chunks import one_thread, slices
from ttdg.metrics.distance import distances, pooled_distances


@dataclass(frozen=True)
class SurfaceScores:
    """Surface distances per image and region; 0 if both masks are empty, the image's diagonal if one is."""

    hd95: Float[Tensor, "b r"]
    hd95_pooled: Float[Tensor, "b r"]
    assd: Float[Tensor, "b r"]
    missed: Bool[Tensor, "b r"]  # exactly one of the two masks is empty


def hd95(
    prediction: Bool[Tensor, "b r *shape"],
    truth: Bool[Tensor, "b r *shape"],
    spacing: Float[Tensor, "b k"] | None = None,
) -> Float[Tensor, "b r"]:
    """HD95 as in MONAI: the larger of the two directed 95th percentiles."""
    return surface_scores(prediction, truth, spacing).hd95


def hd95_pooled(
    prediction: Bool[Tensor, "b r *shape"],
    truth: Bool[Tensor, "b r *shape"],
    spacing: Float[Tensor, "b k"] | None = None,
) -> Float[Tensor, "b r"]:
    """HD95 as in medpy: the 95th percentile of the distances of both directions together."""
    return surface_scores(prediction, truth, spacing).hd95_pooled


def assd(
    prediction: Bool[Tensor, "b r *shape"],
    truth: Bool[Tensor, "b r *shape"],
    spacing: Float[Tensor, "b k"] | None = None,
) -> Float[Tensor, "b r"]:
    """Average symmetric surface distance: the mean of the distances of both directions together."""
    return surface_scores(prediction, truth, spacing).assd


@one_thread()
def surface_scores(
    prediction: Bool[Tensor, "b r *shape"],
    truth: Bool[Tensor, "b r *shape"],
    spacing: Float[Tensor, "b k"] | None = None,
) -> SurfaceScores:
    """All surface distances from one computation; `spacing` is the side of each image's pixels along every axis."""
    if spacing is None:
        spacing = torch.ones(len(prediction), prediction.ndim - 2)
    spacing = spacing.to(prediction.device, torch.float64)
    parts = [_surface_scores(*part) for part in slices(prediction, truth, spacing)]
    hd95, hd95_pooled, assd, missed = (torch.cat(scores) for scores in zip(*parts, strict=True))
    return SurfaceScores(hd95, hd95_pooled, assd, missed)


def _surface_scores(
    prediction: Bool[Tensor, "b r *shape"], truth: Bool[Tensor, "b r *shape"], spacing: Float[Tensor, "b k"]
) -> tuple[Tensor, ...]:
    b, r, *shape = prediction.shape
    pixel = spacing.repeat_interleave(r, 0)
    P, G = surface(prediction.flatten(0, 1)), surface(truth.flatten(0, 1))
    to_truth, to_prediction = distances(P, G, pixel), distances(G, P, pixel)
    both = pooled_distances(to_truth, to_prediction)
    worst = torch.maximum(to_truth.percentile(0.95), to_prediction.percentile(0.95))
    predicted, present = to_truth.count > 0, to_prediction.count > 0
    diagonal = (pixel * pixel.new_tensor(shape)).norm(dim=1)  # larger than any distance within the image
    if_empty = diagonal.where(predicted | present, 0)
    scores = (worst, both.percentile(0.95), both.mean())
    defined = (score.where(predicted & present, if_empty) for score in scores)
    return tuple(score.view(b, r) for score in (*defined, predicted ^ present))


def surface(masks: Bool[Tensor, "n *shape"]) -> Bool[Tensor, "n *shape"]:
    """Mask pixels with a direct neighbour outside the mask; the image border counts as outside.

    A pixel has two direct neighbours along each axis.
    """
    padded, axes, inner = pad(masks, (1, 1) * (masks.ndim - 1)), range(1, masks.ndim), masks
    for axis, side in itertools.product(axes, (0, 2)):  # the neighbours before and after
        neighbour = padded
        for other in axes:
            neighbour = neighbour.narrow(other, side if other == axis else 1, masks.shape[other])
        inner = inner & neighbour
    return masks & ~inner
