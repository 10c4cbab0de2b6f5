"""Exact Euclidean distances between sets of pixels, for many images at once."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ttdg.metrics.chunks import slices


@dataclass(frozen=True)
class Distances:
    """Some distances of each of n owners, as one list."""

    value: Float[Tensor, "q"]
    owner: Int[Tensor, "q"]
    count: Int[Tensor, "n"]  # how many each owner has

    def mean(self) -> Float[Tensor, "n"]:
        """Each owner's mean; 0 for an owner of none."""
        total = self.value.new_zeros(len(self.count)).index_add_(0, self.owner, self.value)
        return total / self.count.clamp(min=1)

    def percentile(self, rank: float) -> Float[Tensor, "n"]:
        """Each owner's percentile, linear between its neighbours; any number for an owner of none."""
        by_value = self.value.argsort()
        order = by_value[self.owner[by_value].argsort(stable=True)]
        value = pad(self.value[order], (0, 1))  # the last owner, if of none, looks one past the end
        first, last = self.count.cumsum(0) - self.count, (self.count - 1).clamp(min=0)
        position = rank * last.double()
        low = position.long()
        high = torch.minimum(low + 1, last)
        return torch.lerp(value[first + low], value[first + high], position - low)


def pooled_distances(these: Distances, those: Distances) -> Distances:
    """Both lists as one, of the same owners."""
    value, owner = torch.cat((these.value, those.value)), torch.cat((these.owner, those.owner))
    return Distances(value, owner, these.count + those.count)


def distances(
    pixels: Bool[Tensor, "n h w"], targets: Bool[Tensor, "n h w"], spacing: Float[Tensor, "n 2"]
) -> Distances:
    """From each of an image's `pixels` to the nearest of its `targets`; infinite where there is none.

    Squared distances separate: the least, over the rows y', of (distance to a target within row y')²
    + (y - y')². So one scan along the rows, then one column of the image for each pixel asked for.
    """
    within = _distance_within_rows(targets).mT.contiguous()  # n w h: a column is contiguous
    owner, y, x = pixels.nonzero(as_tuple=True)
    rows = torch.arange(pixels.shape[1], dtype=spacing.dtype, device=spacing.device)
    squared = [
        ((rows - j[:, None]) * spacing[i, :1])
        .square_()
        .add_((within[i, k] * spacing[i, 1:]).square_())
        .amin(1)
        for i, j, k in slices(owner, y, x, pixels=len(rows))
    ]
    return Distances(torch.cat(squared).sqrt_(), owner, owner.bincount(minlength=len(pixels)))


def _distance_within_rows(targets: Bool[Tensor, "n h w"]) -> Float[Tensor, "n h w"]:
    """In pixels, to the nearest target of the same row, left or right."""
    x = torch.arange(targets.shape[2], dtype=torch.float32, device=targets.device)
    left = x - x.where(targets, -torch.inf).cummax(2).values
    right = x.where(targets, torch.inf).flip(2).cummin(2).values.flip(2) - x
    return torch.minimum(left, right)
