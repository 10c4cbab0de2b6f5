"""Nodes from feature maps: spatially uniform, per class and level (φ of Algorithm 1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from ttdg.errors import UserError


@dataclass(frozen=True)
class Nodes:
    """`b` images' nodes, padded to n = levels × classes × per_class, in that order."""

    features: Float[Tensor, "b n h"]
    labels: Int[Tensor, "b n"]  # 1..classes; 0 on padding
    mask: Bool[Tensor, "b n"]
    coordinates: Float[Tensor, "b n 2"]  # (y, x) of the cell's centre, in [0, 1]


def sample_nodes(
    features: Sequence[Float[Tensor, "b h _y _x"]],
    labels: Int[Tensor, "b height width"],
    *,
    classes: Sequence[int],
    per_class: int,
) -> Nodes:
    """Up to `per_class` nodes of each class from each feature level, spread evenly over the structure.

    `classes` lists the label values that become nodes; a node's label is the value's place in the list, from
    1. A structure with fewer cells than `per_class` gives all of them; one that falls between the grid
    points of a coarse level is seen through every cell it touches, so no level loses it. Deterministic.
    """
    widths = {level.shape[1] for level in features}
    if len(widths) != 1:
        raise UserError(
            f"feature levels of {sorted(widths)} channels: project them to one width before sampling"
        )
    picked = [_from_level(level, labels, tuple(classes), per_class) for level in features]
    return Nodes(*(torch.cat(parts, dim=1) for parts in zip(*picked, strict=True)))


def class_cells(
    labels: Int[Tensor, "b height width"], classes: Sequence[int], size: tuple[int, int]
) -> Bool[Tensor, "b c y x"]:
    """Which cells of a y×x grid show each class: those whose centre does, or, if no centre does, those that
    touch it."""
    there = torch.stack([labels == value for value in classes], 1).float()
    centres = F.interpolate(there, size=size, mode="nearest-exact").bool()
    touched = F.adaptive_max_pool2d(there, size).bool()
    return torch.where(centres.flatten(2).any(2)[:, :, None, None], centres, touched)


def spread(cells: Bool[Tensor, "b c y x"], count: int) -> tuple[Int[Tensor, "b c k"], Bool[Tensor, "b c k"]]:
    """Flat indices of `count` cells of each set, evenly spaced along a Z-order curve, and which of them are
    real.

    Along raster order the same spacing can meet one column of a shape again and again; stretches of the
    Z-order curve are compact, so each pick stands for a patch of the same area.
    """
    order = z_order(cells.shape[2], cells.shape[3], cells.device)
    seen = cells.flatten(2)[:, :, order].cumsum(2)
    total = seen[:, :, -1:]
    slot = torch.arange(count, device=cells.device).expand(*total.shape[:2], count)
    rank = torch.where(total < count, slot, ((2 * slot + 1) * total).div(2 * count, rounding_mode="floor"))
    place = torch.searchsorted(seen, rank + 1).clamp(max=len(order) - 1)
    return order[place], slot < total


@lru_cache(maxsize=32)
def z_order(height: int, width: int, device: torch.device | None = None) -> Int[Tensor, " cells"]:
    """The cells of a grid in the order of their interleaved coordinate bits. Kept, and kept where it is needed."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    code = torch.zeros_like(y)
    for bit in range(max(height, width).bit_length()):
        code |= ((y >> bit & 1) << (2 * bit + 1)) | ((x >> bit & 1) << (2 * bit))
    return code.flatten().argsort().to(device=device)


def _from_level(
    level: Tensor, labels: Tensor, classes: tuple[int, ...], per_class: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    height, width = level.shape[2:]
    index, real = spread(class_cells(labels, classes, (height, width)), per_class)
    index, mask = index.flatten(1), real.flatten(1)
    picked = level.flatten(2).gather(2, index[:, None].expand(-1, level.shape[1], -1)).mT
    label = torch.arange(1, len(classes) + 1, device=labels.device).repeat_interleave(per_class) * mask
    place = torch.stack([(index // width + 0.5) / height, (index % width + 0.5) / width], dim=2)
    return picked * mask[:, :, None], label, mask, place * mask[:, :, None]
