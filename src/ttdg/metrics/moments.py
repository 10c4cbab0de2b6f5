"""Count, mean and spread of a map on background and foreground, from one look at the pixels."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from ttdg.metrics.chunks import slices, summing_dtype

FLAT = 0.01  # a variance so small beside the square of the bias that float32 may blur it


@dataclass(frozen=True)
class Quadrants:
    """Above and below, left and right of a line each, as 0 and 1."""

    rows: Float[Tensor, "n 2 h"]
    columns: Float[Tensor, "n 2 w"]

    def of(self, some: Bool[Tensor, "n"]) -> "Quadrants":
        """Those of some images only."""
        return Quadrants(self.rows[some], self.columns[some])

    def area(self) -> Float[Tensor, "n 2 2"]:
        """In pixels."""
        return self.rows.sum(2)[:, :, None] * self.columns.sum(2)[:, None]


def around_centroid(truth: Bool[Tensor, "n h w"]) -> Quadrants:
    """Split after the row and the column of the truth's centroid, which is rounded half to even."""
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
    """Whether p has one value only, by comparison: a spread near 0 cannot tell."""
    rows, columns = quadrants.rows.bool()[..., None], quadrants.columns.bool()[:, None]
    highest = p[:, None].where(rows, -torch.inf).amax(2)[:, :, None].where(columns, -torch.inf).amax(3)
    lowest = p[:, None].where(rows, torch.inf).amin(2)[:, :, None].where(columns, torch.inf).amin(3)
    return highest == lowest


@dataclass(frozen=True)
class Moments:
    """Of a number in sets of pixels."""

    count: Float[Tensor, "*k"]
    mean: Float[Tensor, "*k"]  # anything for an empty set
    spread: Float[Tensor, "*k"]  # Σ(x - mean)²

    def united(self, *axes: int) -> "Moments":
        """Of the unions of the sets along some axes."""
        count = self.count.sum(axes, keepdim=True)
        mean = (self.count * self.mean).sum(axes, keepdim=True) / count.clamp(min=1)
        spread = self.spread + self.count * (self.mean - mean) ** 2
        return Moments(count.squeeze(axes), mean.squeeze(axes), spread.sum(axes))


def class_moments(p: Float[Tensor, "n h w"], truth: Bool[Tensor, "n h w"], quadrants: Quadrants) -> Moments:
    """Of p on background and foreground, above and below, left and right: n 2 2 2.

    Sums about the truth, 0 and 1, are accurate in float32 unless a class hardly varies about a value far from
    it; such maps get a second look, moved to where they vary about the truth.
    """
    g = truth.view(torch.uint8)
    moments = _moments(p, g, quadrants)
    whole = moments.united(2, 3)
    bias = whole.mean - whole.mean.new_tensor([0, 1])
    some = (whole.spread < FLAT * whole.count * bias**2).any(1)
    if not some.any():
        return moments
    bias = bias[some][..., None, None]
    moved = p[some] - torch.where(truth[some], bias[:, 1], bias[:, 0])
    again = _moments(moved, g[some], quadrants.of(some))
    mean, spread = (
        moments.mean.index_put((some,), again.mean + bias),
        moments.spread.index_put((some,), again.spread),
    )
    return Moments(moments.count, mean, spread)


def _moments(p: Float[Tensor, "n h w"], g: UInt8[Tensor, "n h w"], quadrants: Quadrants) -> Moments:
    parts = list(slices(p.to(quadrants.rows), g, quadrants.rows))
    space = quadrants.rows.new_empty(2, *parts[0][0].shape)  # one for all parts: the cache keeps it
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
    """Column by column, of the rows above and below: Σg, then Σe and Σe² of each class, with e = p - g."""
    inside, outside = space[1].copy_(g), space[0]
    foreground = torch.bmm(rows, inside)
    torch.sub(p, inside, out=outside)
    inside.mul_(outside)
    outside.sub_(inside)
    return torch.cat((foreground[None], rows @ space, rows @ space.mul_(space))).transpose(0, 1)
