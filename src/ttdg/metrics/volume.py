"""Scores of whole volumes: Dice over all voxels, and surface distances in three dimensions."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.metrics.surface import SurfaceScores, surface_scores


def volume_dice(prediction: Bool[Tensor, "r d h w"], truth: Bool[Tensor, "r d h w"]) -> Float[Tensor, "r"]:
    """2|P∩G| / (|P|+|G|) over all voxels of a volume; 1 if both masks are empty, 0 if exactly one is.

    The slices are pooled before the division. A slice without the structure therefore counts by its false voxels, and
    not as a score of its own.
    """
    both = (prediction.flatten(1).sum(1) + truth.flatten(1).sum(1)).double()
    return (2 * (prediction & truth).flatten(1).sum(1) / both).where(both > 0, 1)


def volume_surface_scores(
    prediction: Bool[Tensor, "r d h w"],
    truth: Bool[Tensor, "r d h w"],
    spacing: Sequence[float] = (1.0, 1.0, 1.0),
) -> SurfaceScores:
    """Surface distances of one volume, with a first axis of length 1; those of a missed structure are the diagonal.

    `spacing` is the side of a voxel along z, y and x: in millimetres for distances in millimetres, 1 for distances in
    voxels. Only the box around both masks is searched.
    """
    size = torch.tensor([spacing], dtype=torch.float64)
    shape = torch.tensor(prediction.shape[1:], dtype=torch.float64)
    box = _box((prediction | truth).any(0))
    scores = surface_scores(prediction[:, *box][None], truth[:, *box][None], size)
    diagonal = (size[0] * shape).norm().to(scores.hd95)
    hd95, pooled, assd = (
        value.where(~scores.missed, diagonal) for value in (scores.hd95, scores.hd95_pooled, scores.assd)
    )
    return SurfaceScores(hd95, pooled, assd, scores.missed)


def _box(mask: Bool[Tensor, "d h w"]) -> tuple[slice, slice, slice]:
    """Return the smallest box that holds the mask; the first voxel for an empty mask."""
    ends = []
    for others in ((1, 2), (0, 2), (0, 1)):
        inside = mask.any(others[1]).any(others[0]).nonzero()[:, 0]
        ends.append(slice(int(inside[0]), int(inside[-1]) + 1) if len(inside) else slice(0, 1))
    return ends[0], ends[1], ends[2]
