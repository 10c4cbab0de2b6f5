"""Geometric shifts: zoom, rotation, growth of a structure, and the boundary of another annotator."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F


def move(
    images: Float[Tensor, "b 3 h w"],
    labels: Int[Tensor, "b h w"],
    zoom: Float[Tensor, "b"],
    angle: Float[Tensor, "b"],
    growth: Float[Tensor, "b"],
    border: Float[Tensor, "b"],
    inner_border: Float[Tensor, "b"],
) -> tuple[Float[Tensor, "b 3 h w"], Int[Tensor, "b h w"]]:
    """Zoom and rotate images and grow the structure about its centre; the parameters are fields of `Shift`."""
    b, _, h, w = images.shape
    cos, sin = angle.cos() / zoom, angle.sin() / zoom
    zero = torch.zeros_like(cos)
    affine = torch.stack([torch.stack([cos, -sin, zero], -1), torch.stack([sin, cos, zero], -1)], 1)
    grid = F.affine_grid(affine, [b, 1, h, w], align_corners=False)
    # Annotators disagree more about a structure inside another than about an outline.
    annotated = torch.where(labels.amax((1, 2)) > 1, inner_border, border)
    visible_grid = _grown(grid, labels, growth)
    annotated_grid = _grown(grid, labels, growth + annotated)
    images = F.grid_sample(images, visible_grid, padding_mode="reflection", align_corners=False)
    return images, _annotation(_resampled(labels, visible_grid), _resampled(labels, annotated_grid))


def _resampled(labels: Tensor, grid: Tensor) -> Tensor:
    moved = F.grid_sample(
        labels[:, None].to(grid), grid, mode="nearest", padding_mode="reflection", align_corners=False
    )
    return moved[:, 0].to(labels.dtype)


def _annotation(visible: Tensor, annotated: Tensor) -> Tensor:
    """Replace the innermost structure by the annotator's; it stays inside the structure that surrounds it."""
    deepest = visible.amax((1, 2), keepdim=True).clamp(min=1)
    inner = (annotated >= deepest) & ((visible > 0) | (deepest == 1))
    return torch.where(inner, deepest, torch.minimum(visible, deepest - 1))


def _grown(grid: Tensor, labels: Tensor, growth: Tensor) -> Tensor:
    """Warp a sampling grid smoothly: magnification e^growth at the structure's centre, 1 far away."""
    h, w = labels.shape[1:]
    weight = (labels > 0).to(grid)
    total = weight.sum((1, 2)).clamp(min=1)
    y = ((torch.arange(h, device=grid.device) + 0.5) / h * 2 - 1)[None, :, None]
    x = ((torch.arange(w, device=grid.device) + 0.5) / w * 2 - 1)[None, None, :]
    centre = torch.stack([(weight * x).sum((1, 2)), (weight * y).sum((1, 2))], -1) / total[:, None]
    radius = (4 * total / (h * w) / math.pi).sqrt().clamp(min=0.1)  # of a disc of that area, in grid units
    offset = grid - centre[:, None, None]
    reach = torch.exp(-offset.square().sum(-1) / (2 * (1.5 * radius)[:, None, None].square()))
    present = (weight.sum((1, 2)) > 0).to(grid)
    factor = torch.exp(-growth * present)[:, None, None] - 1
    return grid + (factor * reach)[..., None] * offset
