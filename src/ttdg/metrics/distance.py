"""Exact Euclidean distances between sets of pixels, for many images at once."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ttdg.metrics.chunks import slices


@dataclass(frozen=True)
class Distances:
    """Distances of n images as one flat list."""

    value: Float[Tensor, "q"]
    owner: Int[Tensor, "q"]  # index of the image that a distance belongs to
    count: Int[Tensor, "n"]  # number of distances of each image

    def mean(self) -> Float[Tensor, "n"]:
        """Mean distance per image; 0 for an image without distances."""
        total = self.value.new_zeros(len(self.count)).index_add_(0, self.owner, self.value)
        return total / self.count.clamp(min=1)

    def percentile(self, rank: float) -> Float[Tensor, "n"]:
        """Quantile per image, `rank` in [0, 1], interpolated linearly; undefined for an image without distances."""
        by_value = self.value.argsort()
        order = by_value[self.owner[by_value].argsort(stable=True)]
        value = pad(self.value[order], (0, 1))  # an empty last image reads one past the end
        first, last = self.count.cumsum(0) - self.count, (self.count - 1).clamp(min=0)
        position = rank * last.double()
        low = position.long()
        high = torch.minimum(low + 1, last)
        return torch.lerp(value[first + low], value[first + high], position - low)


def pooled_distances(first: Distances, second: Distances) -> Distances:
    """Both lists of the same images as one."""
    value, owner = torch.cat((first.value, second.value)), torch.cat((first.owner, second.owner))
    return Distances(value, owner, first.count + second.count)


def distances(
    pixels: Bool[Tensor, "n h w"], targets: Bool[Tensor, "n h w"], spacing: Float[Tensor, "n 2"]
) -> Distances:
    """Distance from each of an image's `pixels` to the nearest of its `targets`; infinite if it has no targets.

    The squared distance is the minimum, over the rows y', of (distance to a target within row y')² + (y - y')². The
    computation is therefore one scan along the rows, then one image column per pixel. `spacing` is the height and width
    of a pixel.
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
    """Distance, in pixels, to the nearest target in the same row."""
    x = torch.arange(targets.shape[2], dtype=torch.float32, device=targets.device)
    left = x - x.where(targets, -torch.inf).cummax(2).values
    right = x.where(targets, torch.inf).flip(2).cummin(2).values.flip(2) - x
    return torch.minimum(left, right)
