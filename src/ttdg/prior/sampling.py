"""Spatially uniform sampling of nodes from feature maps, per class and level: φ of Algorithm 1, line 9."""

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
    """The nodes of `b` images, padded to n = levels × classes × per_class and ordered in this way."""

    features: Float[Tensor, "b n h"]
    labels: Int[Tensor, "b n"]  # 1..classes; 0 on padding
    mask: Bool[Tensor, "b n"]
    coordinates: Float[Tensor, "b n 2"]  # (y, x) of the cell's centre, in [0, 1] over the image


def sample_nodes(
    features: Sequence[Float[Tensor, "b h _y _x"]],
    labels: Int[Tensor, "b height width"],
    *,
    classes: Sequence[int],
    per_class: int,
) -> Nodes:
    """Up to `per_class` nodes of each class from each feature level, spread evenly over the class's area.

    The sampling is deterministic. A class with fewer cells than `per_class` gives all of them. A structure that
    contains no cell centre of a coarse level gives the cells it touches, so that no level misses it.

    Args:
        features: one map per level, all with the same number of channels h.
        labels: the label map; its size may differ from that of the features.
        classes: label values to sample. A node's label is the position of its value in this list, starting at 1.
        per_class: nodes per class and level.
    """
    widths = {level.shape[1] for level in features}
    if len(widths) != 1:
        raise UserError(
            f"feature levels have {sorted(widths)} channels: project them to one width before sampling"
        )
    levels = [_from_level(level, labels, tuple(classes), per_class) for level in features]
    return Nodes(*(torch.cat(parts, dim=1) for parts in zip(*levels, strict=True)))


def class_cells(
    labels: Int[Tensor, "b height width"], classes: Sequence[int], size: tuple[int, int]
) -> Bool[Tensor, "b c y x"]:
    """Cells of a y×x grid that belong to each class.

    These are the cells whose centre has the label or, if no centre has it, the cells that touch the label.
    """
    present = torch.stack([labels == value for value in classes], 1).float()
    centres = F.interpolate(present, size=size, mode="nearest-exact").bool()
    touched = F.adaptive_max_pool2d(present, size).bool()
    return torch.where(centres.flatten(2).any(2)[:, :, None, None], centres, touched)


def spread(cells: Bool[Tensor, "b c y x"], count: int) -> tuple[Int[Tensor, "b c k"], Bool[Tensor, "b c k"]]:
    """Flat indices of `count` cells of each set, evenly spaced along a Z-order curve, and a mask of valid ones.

    Even spacing in raster order can select one column of a shape again and again. Segments of the Z-order curve are
    compact, so here each selected cell represents a patch of the same area.
    """
    order = z_order(cells.shape[2], cells.shape[3], cells.device)
    running = cells.flatten(2)[:, :, order].cumsum(2)
    total = running[:, :, -1:]
    slot = torch.arange(count, device=cells.device).expand(*total.shape[:2], count)
    rank = torch.where(total < count, slot, ((2 * slot + 1) * total).div(2 * count, rounding_mode="floor"))
    position = torch.searchsorted(running, rank + 1).clamp(max=len(order) - 1)
    return order[position], slot < total


@lru_cache(maxsize=32)
def z_order(height: int, width: int, device: torch.device | None = None) -> Int[Tensor, " cells"]:
    """Flat indices of a grid's cells, ordered by their interleaved coordinate bits; cached per device."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    code = torch.zeros_like(y)
    for bit in range(max(height, width).bit_length()):
        code |= ((y >> bit & 1) << (2 * bit + 1)) | ((x >> bit & 1) << (2 * bit))
    return code.flatten().argsort().to(device=device)


def _from_level(
    level: Tensor, labels: Tensor, classes: tuple[int, ...], per_class: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, labels, mask and coordinates of the nodes of one level."""
    height, width = level.shape[2:]
    index, real = spread(class_cells(labels, classes, (height, width)), per_class)
    index, mask = index.flatten(1), real.flatten(1)
    values = level.flatten(2).gather(2, index[:, None].expand(-1, level.shape[1], -1)).mT
    label = torch.arange(1, len(classes) + 1, device=labels.device).repeat_interleave(per_class) * mask
    centre = torch.stack([(index // width + 0.5) / height, (index % width + 0.5) / width], dim=2)
    return values * mask[:, :, None], label, mask, centre * mask[:, :, None]
