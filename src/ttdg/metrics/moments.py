"""Count, mean and sum of squares of a map on background and foreground, in one pass over the pixels."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from ttdg.metrics.chunks import slices, summing_dtype

FLAT = 0.01  # below this ratio of variance to squared bias, float32 sums may lose the variance


@dataclass(frozen=True)
class Quadrants:
    """The four quadrants of each image, as 0/1 indicators of rows and columns."""

    rows: Float[Tensor, "n 2 h"]  # above, below
    columns: Float[Tensor, "n 2 w"]  # left, right

    def select(self, images: Bool[Tensor, "n"]) -> "Quadrants":
        """The quadrants of some of the images."""
        return Quadrants(self.rows[images], self.columns[images])

    def area(self) -> Float[Tensor, "n 2 2"]:
        """Pixels per quadrant."""
        return self.rows.sum(2)[:, :, None] * self.columns.sum(2)[:, None]


def around_centroid(truth: Bool[Tensor, "n h w"]) -> Quadrants:
    """Quadrants split after the row and the column of the truth's centroid, rounded half to even."""
    h, w = truth.shape[1:]
    work = summing_dtype(truth.device)
    y, x = (torch.arange(size, dtype=work, device=truth.device) for size in (h, w))
    weights = torch.stack((torch.ones_like(y), y))
    sums = torch.cat([weights @ g.to(work) for (g,) in slices(truth.view(torch.uint8))]).double()
    mass = sums[:, 0].sum(1, keepdim=True).clamp(min=1)
    row, column = sums[:, 1].sum(1, keepdim=True) / mass, (sums[:, 0] * x).sum(1, keepdim=True) / mass
    above, left = y <= row.round(), x <= column.round()
    return Quadrants(torch.stack((above, ~above), dim=1).to(work), torch.stack((left, ~left), dim=1).double())


def is_constant(p: Float[Tensor, "n h w"], quadrants: Quadrants) -> Bool[Tensor, "n 2 2"]:
    """True for quadrants in which p has a single value, by comparison; a variance near 0 would not prove it."""
    rows, columns = quadrants.rows.bool()[..., None], quadrants.columns.bool()[:, None]
    highest = p[:, None].where(rows, -torch.inf).amax(2)[:, :, None].where(columns, -torch.inf).amax(3)
    lowest = p[:, None].where(rows, torch.inf).amin(2)[:, :, None].where(columns, torch.inf).amin(3)
    return highest == lowest


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of a value over sets of pixels."""

    count: Float[Tensor, "*k"]
    mean: Float[Tensor, "*k"]  # undefined for an empty set
    spread: Float[Tensor, "*k"]  # Σ(x - mean)²

    def merged(self, *axes: int) -> "Moments":
        """Moments of the unions of the sets along `axes`."""
        count = self.count.sum(axes, keepdim=True)
        mean = (self.count * self.mean).sum(axes, keepdim=True) / count.clamp(min=1)
        spread = self.spread + self.count * (self.mean - mean) ** 2
        return Moments(count.squeeze(axes), mean.squeeze(axes), spread.sum(axes))


def class_moments(p: Float[Tensor, "n h w"], truth: Bool[Tensor, "n h w"], quadrants: Quadrants) -> Moments:
    """Moments of p per class (background, foreground) and quadrant (above/below, left/right): n 2 2 2.

    Deviations are summed about the truth, 0 or 1. In float32 this is accurate unless p hardly varies about a value far
    from the truth; such maps are computed a second time, shifted so that they vary about the truth.
    """
    g = truth.view(torch.uint8)
    moments = _moments(p, g, quadrants)
    whole = moments.merged(2, 3)
    bias = whole.mean - whole.mean.new_tensor([0, 1])
    flat = (whole.spread < FLAT * whole.count * bias**2).any(1)
    if not flat.any():
        return moments
    bias = bias[flat][..., None, None]
    shifted = p[flat] - torch.where(truth[flat], bias[:, 1], bias[:, 0])
    exact = _moments(shifted, g[flat], quadrants.select(flat))
    mean, spread = (
        moments.mean.index_put((flat,), exact.mean + bias),
        moments.spread.index_put((flat,), exact.spread),
    )
    return Moments(moments.count, mean, spread)


def _moments(p: Float[Tensor, "n h w"], g: UInt8[Tensor, "n h w"], quadrants: Quadrants) -> Moments:
    """`class_moments` without the second pass."""
    parts = list(slices(p.to(quadrants.rows), g, quadrants.rows))
    space = quadrants.rows.new_empty(
        2, *parts[0][0].shape
    )  # shared by all parts, so that it stays in the cache
    lines = torch.cat([_sums_of_rows(space[:, : len(part[0])], *part) for part in parts])
    sums = (lines.double().flatten(1, 2) @ quadrants.columns.mT).view(-1, 5, 2, 2)
    count = torch.stack((quadrants.area() - sums[:, 0], sums[:, 0]), dim=1)
    total, squares = sums[:, 1:3], sums[:, 3:]
    shift = total / count.clamp(min=1)
    mean = shift + shift.new_tensor([0, 1])[:, None, None]
    return Moments(count, mean, (squares - total * shift).clamp(min=0))


def _sums_of_rows(
    space: Float[Tensor, "2 n h w"],
    p: Float[Tensor, "n h w"],
    g: UInt8[Tensor, "n h w"],
    rows: Float[Tensor, "n 2 h"],
) -> Float[Tensor, "n 5 2 w"]:
    """Sums over the rows above and below, per column: Σg, then Σe and Σe² of each class, with e = p - g."""
    inside, outside = space[1].copy_(g), space[0]
    foreground = torch.bmm(rows, inside)
    torch.sub(p, inside, out=outside)
    inside.mul_(outside)
    outside.sub_(inside)
    return torch.cat((foreground[None], rows @ space, rows @ space.mul_(space))).transpose(0, 1)
