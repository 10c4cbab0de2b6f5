"""HD95 and ASSD: distances between surfaces, in pixels or physical units."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from ttdg.metrics.chunks import one_thread, slices
from ttdg.metrics.distance import distances, pooled_distances


@dataclass(frozen=True)
class SurfaceScores:
    """Per image and region. Both masks empty: 0. Exactly one empty: the image's diagonal, and `missed`."""

    hd95: Float[Tensor, "b r"]
    hd95_pooled: Float[Tensor, "b r"]
    assd: Float[Tensor, "b r"]
    missed: Bool[Tensor, "b r"]


def hd95(
    prediction: Bool[Tensor, "b r h w"],
    truth: Bool[Tensor, "b r h w"],
    spacing: Float[Tensor, "b 2"] | None = None,
) -> Float[Tensor, "b r"]:
    """The larger of the two directed 95th percentiles, as MONAI has it."""
    return surface_scores(prediction, truth, spacing).hd95


def hd95_pooled(
    prediction: Bool[Tensor, "b r h w"],
    truth: Bool[Tensor, "b r h w"],
    spacing: Float[Tensor, "b 2"] | None = None,
) -> Float[Tensor, "b r"]:
    """The 95th percentile of both directions together, as medpy has it."""
    return surface_scores(prediction, truth, spacing).hd95_pooled


def assd(
    prediction: Bool[Tensor, "b r h w"],
    truth: Bool[Tensor, "b r h w"],
    spacing: Float[Tensor, "b 2"] | None = None,
) -> Float[Tensor, "b r"]:
    """The average symmetric surface distance: the mean of both directions together."""
    return surface_scores(prediction, truth, spacing).assd


@one_thread()
def surface_scores(
    prediction: Bool[Tensor, "b r h w"],
    truth: Bool[Tensor, "b r h w"],
    spacing: Float[Tensor, "b 2"] | None = None,
) -> SurfaceScores:
    """All of them from one set of distances; `spacing` is the height and the width of each image's pixels."""
    if spacing is None:
        spacing = torch.ones(len(prediction), 2)
    spacing = spacing.to(prediction.device, torch.float64)
    parts = [_surface_scores(*part) for part in slices(prediction, truth, spacing)]
    hd95, hd95_pooled, assd, missed = (torch.cat(scores) for scores in zip(*parts, strict=True))
    return SurfaceScores(hd95, hd95_pooled, assd, missed)


def _surface_scores(
    prediction: Bool[Tensor, "b r h w"], truth: Bool[Tensor, "b r h w"], spacing: Float[Tensor, "b 2"]
) -> tuple[Tensor, ...]:
    b, r, h, w = prediction.shape
    pixel = spacing.repeat_interleave(r, 0)
    P, G = surface(prediction.flatten(0, 1)), surface(truth.flatten(0, 1))
    there, back = distances(P, G, pixel), distances(G, P, pixel)
    both = pooled_distances(there, back)
    worst = torch.maximum(there.percentile(0.95), back.percentile(0.95))
    found, wanted = there.count > 0, back.count > 0
    diagonal = (pixel * pixel.new_tensor([h, w])).norm(dim=1)  # more than any distance within the image
    otherwise = diagonal.where(found | wanted, 0)
    scores = (worst, both.percentile(0.95), both.mean())
    ruled = (score.where(found & wanted, otherwise) for score in scores)
    return tuple(score.view(b, r) for score in (*ruled, found ^ wanted))


def surface(masks: Bool[Tensor, "n h w"]) -> Bool[Tensor, "n h w"]:
    """The pixels with one of four neighbours outside the mask; outside the image is outside the mask."""
    around = pad(masks, (1, 1, 1, 1))
    inner = around[:, :-2, 1:-1] & around[:, 2:, 1:-1] & around[:, 1:-1, :-2] & around[:, 1:-1, 2:]
    return masks & ~inner
