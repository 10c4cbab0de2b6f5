"""The four blocks in which S_α compares regions."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.metrics.chunks import slices, summing_dtype


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
