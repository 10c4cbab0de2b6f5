"""Normalisation and augmentation of image batches, on the device of the images."""

from typing import overload

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from ttdg.data.augmentation import AugmentParameters, FourierParameters
from ttdg.data.schema import NetworkInput, Normalisation

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
GREY = (0.299, 0.587, 0.114)  # luminance weights of red, green and blue (ITU-R BT.601)
BLUR_RADIUS = 6  # pixels; fixed, so that the result does not depend on the other images of the batch

Masks = Int[Tensor, "b h w"] | UInt8[Tensor, "b h w"]


def normalise(images: Float[Tensor, "b c h w"], how: Normalisation) -> Float[Tensor, "b _ h w"]:
    """Normalise images in [0, 1] by ImageNet's statistics, each image by its own, or as a `NetworkInput` says.

    `minmax` maps the minimum and maximum of an image to 0 and 1, and `zscore` gives it mean 0 and variance 1. Both use
    one pair of numbers for all channels, which keeps the colours. A range, or a standard deviation, below one grey
    level counts as one grey level, so that a constant image becomes zeros. `clipped-zscore` is `zscore` for volumes,
    whose intensities were limited when their file was read (`ttdg.data.volumes.nifti`).
    """
    if isinstance(how, NetworkInput):
        images = images.mean(1, keepdim=True) if how.channels == 1 else images
        return how.low + (how.high - how.low) * images if how.name is None else normalise(images, how.name)
    if how == "imagenet":
        return images.sub(_per_channel(IMAGENET_MEAN, images)).div_(_per_channel(IMAGENET_STD, images))
    if how in ("zscore", "clipped-zscore"):
        variance, mean = torch.var_mean(images, (1, 2, 3), correction=0, keepdim=True)
        return images.sub(mean).div_(variance.sqrt().clamp(min=1 / 255))
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
    """Augment images in [0, 1]; the geometric transform also applies to the masks."""
    grid = _grid(parameters, images)
    if grid is not None:
        images = F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
        masks = None if masks is None else _move_masks(masks, grid)
    return _recolour(images, parameters), masks


def _grid(parameters: AugmentParameters, images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b h w 2"] | None:
    """Return the sampling grid, or None for the identity, so that resampling changes no pixel."""
    if torch.equal(parameters.affine, torch.eye(2, 3).expand_as(parameters.affine)):
        return None
    b, _, h, w = images.shape
    return F.affine_grid(parameters.affine.to(images), [b, 1, h, w], align_corners=False)


def _move_masks(masks: Masks, grid: Float[Tensor, "b h w 2"]) -> Masks:
    """Resample labels by nearest neighbour; labels are small integers, which floats represent exactly."""
    moved = F.grid_sample(
        masks[:, None].to(grid), grid, mode="nearest", padding_mode="reflection", align_corners=False
    )
    return moved[:, 0].to(masks.dtype)


def _recolour(images: Float[Tensor, "b 3 h w"], p: AugmentParameters) -> Float[Tensor, "b 3 h w"]:
    """Change light, colour and contrast, then gamma, then sharpness and noise; skip unused components."""

    def per_image(values: Tensor) -> Tensor:
        return values.to(images)[:, None, None, None]

    images = images * p.gains.to(images)[:, :, None, None] * per_image(p.brightness)
    if (p.saturation != 1).any():
        grey = (images * _per_channel(GREY, images)).sum(1, keepdim=True)
        images = grey + per_image(p.saturation) * (images - grey)
    if (p.contrast != 1).any():
        mean = images.mean((1, 2, 3), keepdim=True)
        images = mean + per_image(p.contrast) * (images - mean)
    images = images.clamp(0, 1)
    if (p.gamma != 1).any():
        images = images ** per_image(p.gamma)
    if (p.blur > 0).any():
        images = blur(images, p.blur.to(images))
    if (p.noise > 0).any():
        images = (images + per_image(p.noise) * seeded_noise(images, p.seed)).clamp(0, 1)
    return images


def exchange_amplitude(
    images: Float[Tensor, "b 3 h w"], partners: Float[Tensor, "b 3 h w"], parameters: FourierParameters
) -> Float[Tensor, "b 3 h w"]:
    """Interpolate the low-frequency amplitudes of images in [0, 1] towards those of their partners.

    The phase, which carries the shapes, is unchanged (FDA, Yang and Soatto 2020; FedDG, Liu et al. 2021). Images with
    weight 0 are returned exactly.
    """
    h, w = images.shape[-2:]
    weight, window = (x.to(images)[:, None, None, None] for x in (parameters.weight, parameters.window))
    y = torch.fft.fftfreq(h, device=images.device).abs()[:, None]  # cycles per pixel, so index / side
    x = torch.fft.rfftfreq(w, device=images.device)[None]
    weight_map = weight * ((y <= window) & (x <= window))
    spectrum = torch.fft.rfft2(images)
    amplitude, target = spectrum.abs(), torch.fft.rfft2(partners).abs()
    ratio = target / amplitude.clamp(min=1e-8)
    changed = torch.fft.irfft2(spectrum * (1 + weight_map * (ratio - 1)), s=(h, w)).clamp(0, 1)
    return torch.where(weight > 0, changed, images)


def blur(images: Float[Tensor, "b c h w"], sigma: Float[Tensor, "b"]) -> Float[Tensor, "b c h w"]:
    """Blur each image by a Gaussian with its own standard deviation, in pixels; 0 leaves an image unchanged."""
    b, c, h, w = images.shape
    offsets = torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1, device=images.device)
    kernels = torch.softmax(-((offsets / sigma.clamp(min=1e-3)[:, None]) ** 2) / 2, dim=-1).to(images)
    weight = kernels.repeat_interleave(c, dim=0)[:, None, None, :]
    flat = F.pad(images, [BLUR_RADIUS] * 4, mode="replicate").reshape(1, b * c, h + 2 * BLUR_RADIUS, -1)
    rows = F.conv2d(flat, weight, groups=b * c)
    return F.conv2d(rows, weight.mT, groups=b * c).reshape(b, c, h, w)


def seeded_noise(images: Float[Tensor, "b c h w"], seeds: Int[Tensor, "b"]) -> Float[Tensor, "b c h w"]:
    """Standard normal noise, each image from its own CPU seed: independent of the rest of the batch.

    Different kinds of device give different noise.
    """
    generator = torch.Generator(images.device)
    noise = torch.empty_like(images)
    for image, seed in zip(noise, seeds.tolist(), strict=True):
        image.normal_(generator=generator.manual_seed(seed))
    return noise


def _per_channel(values: tuple[float, float, float], images: Tensor) -> Float[Tensor, "3 1 1"]:
    return torch.tensor(values, dtype=images.dtype, device=images.device)[:, None, None]
