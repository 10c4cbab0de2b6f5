"""Pixels in, pixels out: normalisation and augmentation, batched, on whatever device the images are."""

from typing import overload

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from ttdg.data.augmentation import AugmentParameters
from ttdg.data.schema import Normalisation

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
GREY = (0.299, 0.587, 0.114)  # how bright the eye finds red, green and blue
BLUR_RADIUS = 6  # pixels; fixed, so that an image's blur does not depend on its neighbours in the batch

Masks = Int[Tensor, "b h w"] | UInt8[Tensor, "b h w"]


def normalise(images: Float[Tensor, "b 3 h w"], how: Normalisation) -> Float[Tensor, "b 3 h w"]:
    """Images in [0, 1] as a network wants them: by ImageNet's statistics, or each by its own extremes.

    `minmax` takes the channels together, so that colours stay. An image flatter than one grey level is not
    blown up to the full range: a constant one becomes zeros.
    """
    if how == "imagenet":
        return images.sub(_per_channel(IMAGENET_MEAN, images)).div_(_per_channel(IMAGENET_STD, images))
    low = images.amin((1, 2, 3), keepdim=True)
    high = images.amax((1, 2, 3), keepdim=True)
    return images.sub(low).div_((high - low).clamp(min=1 / 255))


@overload
def augment(
    images: Float[Tensor, "b 3 h w"], masks: Masks, parameters: AugmentParameters
) -> tuple[Float[Tensor, "b 3 h w"], Masks]: ...
@overload
def augment(
    images: Float[Tensor, "b 3 h w"], masks: None, parameters: AugmentParameters
) -> tuple[Float[Tensor, "b 3 h w"], None]: ...
def augment(
    images: Float[Tensor, "b 3 h w"], masks: Masks | None, parameters: AugmentParameters
) -> tuple[Float[Tensor, "b 3 h w"], Masks | None]:
    """Images in [0, 1] and their masks, moved by the same map; colours change in the images only."""
    grid = _grid(parameters, images)
    if grid is not None:
        images = F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
        masks = None if masks is None else _move_masks(masks, grid)
    return _recolour(images, parameters), masks


def _grid(parameters: AugmentParameters, images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b h w 2"] | None:
    """None where nothing moves, which is then exact."""
    if torch.equal(parameters.affine, torch.eye(2, 3).expand_as(parameters.affine)):
        return None
    b, _, h, w = images.shape
    return F.affine_grid(parameters.affine.to(images), [b, 1, h, w], align_corners=False)


def _move_masks(masks: Masks, grid: Float[Tensor, "b h w 2"]) -> Masks:
    """Nearest neighbour, so no label is invented; labels are small enough to be exact as floats."""
    moved = F.grid_sample(
        masks[:, None].to(grid), grid, mode="nearest", padding_mode="reflection", align_corners=False
    )
    return moved[:, 0].to(masks.dtype)


def _recolour(images: Float[Tensor, "b 3 h w"], p: AugmentParameters) -> Float[Tensor, "b 3 h w"]:
    """As a camera would: light, response, then optics and sensor. Parts that were not drawn are skipped."""

    def each(values: Tensor) -> Tensor:
        return values.to(images)[:, None, None, None]

    images = images * p.gains.to(images)[:, :, None, None] * each(p.brightness)
    if (p.saturation != 1).any():
        grey = (images * _per_channel(GREY, images)).sum(1, keepdim=True)
        images = grey + each(p.saturation) * (images - grey)
    if (p.contrast != 1).any():
        mean = images.mean((1, 2, 3), keepdim=True)
        images = mean + each(p.contrast) * (images - mean)
    images = images.clamp(0, 1)
    if (p.gamma != 1).any():
        images = images ** each(p.gamma)
    if (p.blur > 0).any():
        images = blur(images, p.blur.to(images))
    if (p.noise > 0).any():
        images = (images + each(p.noise) * _noise(images, p.seed)).clamp(0, 1)
    return images


def blur(images: Float[Tensor, "b c h w"], sigma: Float[Tensor, "b"]) -> Float[Tensor, "b c h w"]:
    """A Gaussian of each image's own width; 0 leaves the image as it is."""
    b, c, h, w = images.shape
    offsets = torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1, device=images.device)
    kernels = torch.softmax(-((offsets / sigma.clamp(min=1e-3)[:, None]) ** 2) / 2, dim=-1).to(images)
    weight = kernels.repeat_interleave(c, dim=0)[:, None, None, :]
    flat = F.pad(images, [BLUR_RADIUS] * 4, mode="replicate").reshape(1, b * c, h + 2 * BLUR_RADIUS, -1)
    rows = F.conv2d(flat, weight, groups=b * c)
    return F.conv2d(rows, weight.mT, groups=b * c).reshape(b, c, h, w)


def _noise(images: Float[Tensor, "b c h w"], seeds: Int[Tensor, "b"]) -> Float[Tensor, "b c h w"]:
    """Each image from its own seed: the same in any batch, though not on another kind of device."""
    generator = torch.Generator(images.device)
    noise = torch.empty_like(images)
    for image, seed in zip(noise, seeds.tolist(), strict=True):
        image.normal_(generator=generator.manual_seed(seed))
    return noise


def _per_channel(values: tuple[float, float, float], images: Tensor) -> Float[Tensor, "3 1 1"]:
    return torch.tensor(values, dtype=images.dtype, device=images.device)[:, None, None]
