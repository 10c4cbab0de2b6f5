"""Strong augmentation of unlabelled images; soft labels move with the images."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from ttdg.data.augmentation import AUGMENTATIONS, AugmentParameters, draw
from ttdg.data.transforms import augment


def draw_views(
    count: int, generator: Generator, strength: str = "strong", moves: bool = True
) -> AugmentParameters:
    """Draw the augmentation of `count` images from a CPU generator; without `moves`, it keeps every pixel in place."""
    chosen = AUGMENTATIONS[strength]
    if not moves:
        chosen = replace(chosen, flip=False, rotation=0.0, scale=(1.0, 1.0), shift=0.0)
    return draw(chosen, count, generator)


def strong_view(
    images: Float[Tensor, "b c h w"], parameters: AugmentParameters
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b h w 2"]]:
    """Return augmented images in [0, 1], and the sampling grid that moves their labels.

    Colours change in images of three channels. Images with another number of channels are moved only.
    """
    b, c, h, w = images.shape
    grid = F.affine_grid(parameters.affine.to(images), [b, 1, h, w], align_corners=False)
    if c == 3:
        return augment(images, None, parameters)[0], grid
    return _moved(images, grid), grid


def move_labels(labels: Float[Tensor, "b l h w"], grid: Float[Tensor, "b h w 2"]) -> Float[Tensor, "b l h w"]:
    """Move soft labels as `strong_view` moves the images."""
    return _moved(labels, grid)


def _moved(maps: Tensor, grid: Tensor) -> Tensor:
    with torch.autocast(maps.device.type, enabled=False):
        return F.grid_sample(maps, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
