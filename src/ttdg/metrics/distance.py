"""Exact Euclidean distances between sets of pixels or voxels, for many images or volumes at once."""

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
    pixels: Bool[Tensor, "n *shape"], targets: Bool[Tensor, "n *shape"], spacing: Float[Tensor, "n k"]
) -> Distances:
    """Distance from each of an image's `pixels` to the nearest of its `targets`; infinite if it has no targets.

    The squared distance is the minimum, over the rows y', of (distance to a target within row y')² + |y - y'|². The
    computation is therefore one scan along the rows, then all rows at one column per pixel. A row of a volume has two
    coordinates, that of an image one. `spacing` is the side of a pixel along each axis.
    """
    *across, width = pixels.shape[1:]
    within = _distance_within_rows(targets).reshape(len(targets), -1, width).mT.contiguous()
    owner, *position, x = pixels.nonzero(as_tuple=True)
    axes = [torch.arange(side, dtype=spacing.dtype, device=spacing.device) for side in across]
    rows = [axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")]  # coordinates of every row

    def squared(i: Tensor, k: Tensor, *coordinates: Tensor) -> Tensor:
        total = ((rows[0] - coordinates[0][:, None]) * spacing[i, :1]).square_()
        for axis in range(1, len(rows)):
            total.add_(((rows[axis] - coordinates[axis][:, None]) * spacing[i, axis, None]).square_())
        return total.add_((within[i, k] * spacing[i, -1:]).square_()).amin(1)

    parts = [squared(*part) for part in slices(owner, x, *position, pixels=len(rows[0]))]
    return Distances(torch.cat(parts).sqrt_(), owner, owner.bincount(minlength=len(pixels)))


def _distance_within_rows(targets: Bool[Tensor, "n *shape"]) -> Float[Tensor, "n *shape"]:
    """Distance, in pixels, to the nearest target in the same row."""
    x = torch.arange(targets.shape[-1], dtype=torch.float32, device=targets.device)
    left = x - x.where(targets, -torch.inf).cummax(-1).values
    right = x.where(targets, torch.inf).flip(-1).cummin(-1).values.flip(-1) - x
    return torch.minimum(left, right)
