"""Count, mean and spread of a map on background and foreground, from one look at the pixels."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from ttdg.metrics.chunks import slices
from ttdg.metrics.quadrants import Quadrants

THIN = 8  # every eighth row and column tells well enough where a mean is


@dataclass(frozen=True)
class Moments:
    """Of a number in sets of pixels."""

    count: Float[Tensor, "*k"]
    mean: Float[Tensor, "*k"]
    spread: Float[Tensor, "*k"]  # Σ(x - mean)²

    def united(self, *axes: int) -> "Moments":
        """Of the unions of the sets along some axes."""
        count = self.count.sum(axes, keepdim=True)
        mean = (self.count * self.mean).sum(axes, keepdim=True) / count.clamp(min=1)
        spread = self.spread + self.count * (self.mean - mean) ** 2
        return Moments(count.squeeze(axes), mean.squeeze(axes), spread.sum(axes))


def class_moments(p: Float[Tensor, "n h w"], truth: Bool[Tensor, "n h w"], quadrants: Quadrants) -> Moments:
    """Of p on background and foreground, above and below, left and right: n 2 2 2."""
    g = truth.view(torch.uint8)
    pivots = _rough_means(p[:, ::THIN, ::THIN], g[:, ::THIN, ::THIN])
    lines = torch.cat([_sums_of_rows(*part) for part in slices(p, g, quadrants.rows, pivots)])
    foreground, *sums = (lines.double().flatten(1, 2) @ quadrants.columns.mT).view(-1, 5, 2, 2).unbind(1)
    count = torch.stack((quadrants.area() - foreground, foreground), dim=1)
    total, squares = torch.stack(sums[:2], dim=1), torch.stack(sums[2:], dim=1)
    shift = total / count.clamp(min=1)
    return Moments(count, pivots.double()[..., None, None] + shift, (squares - total * shift).clamp(min=0))


def _sums_of_rows(
    p: Float[Tensor, "n h w"],
    g: UInt8[Tensor, "n h w"],
    rows: Float[Tensor, "n 2 h"],
    pivots: Float[Tensor, "n 2"],
) -> Float[Tensor, "n 5 2 w"]:
    """Column by column, of the rows above and below: Σg, then Σd and Σd² of each class, d = p - its pivot.

    About the pivots nothing cancels, so float32 will do.
    """
    work = rows.dtype
    background, foreground = pivots.to(work)[..., None, None].unbind(1)
    inside = g.to(work)
    outside = torch.addcmul(p.to(work), inside, background - foreground).sub_(background)
    sums = [rows @ inside]
    inside.mul_(outside)
    outside.sub_(inside)
    sums += [rows @ outside, rows @ inside, rows @ outside.mul_(outside), rows @ inside.mul_(inside)]
    return torch.stack(sums, dim=1)


def _rough_means(p: Float[Tensor, "n h w"], g: UInt8[Tensor, "n h w"]) -> Float[Tensor, "n 2"]:
    """Of p on background and foreground; 0 and 1 for a class that is not there."""
    inside = g.to(torch.float32)
    weights = torch.stack((1 - inside, inside), dim=1)
    count = weights.sum((2, 3))
    mean = (weights * p[:, None]).sum((2, 3)) / count.clamp(min=1)
    return mean.where(count > 0, mean.new_tensor([0, 1]))
