"""Simulated domain shifts: source images as another scanner, protocol, population or annotator would give them.

Settings are chosen on these shifts and never on a target. A shift has three parts: photometric (light, colours,
sharpness, noise), anatomical (size of the structure, contrast of its interior) and annotation (position of the drawn
boundary). A component is absent from about half of the shifts, so that small and single shifts occur too. Parameters
come from a CPU generator; the pixels stay on their device.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.nn import functional as F

from ttdg.data.augmentation import Rows
from ttdg.data.transforms import GREY, blur, seeded_noise
from ttdg.data.warps import move

SHARE = 0.5  # probability that a shift contains a given component


@dataclass(frozen=True)
class Shift(Rows):
    """Parameters of a batch of shifts, one row per image; neutral values leave the image unchanged."""

    zoom: Float[Tensor, "b"]
    angle: Float[Tensor, "b"]  # radians
    growth: Float[Tensor, "b"]  # log scale factor of the structure in image and annotation
    inner: Float[Tensor, "b"]  # contrast factor of the innermost label against its surroundings
    border: Float[Tensor, "b"]  # log scale factor of the structure in the annotation only
    inner_border: Float[Tensor, "b"]  # the same for a structure inside another
    transfer: Float[Tensor, "b"]  # weight of another image's colour statistics
    mixing: Float[Tensor, "b 3 3"]  # colour matrix
    gains: Float[Tensor, "b 3"]  # factor of each channel
    saturation: Float[Tensor, "b"]
    contrast: Float[Tensor, "b"]
    gamma: Float[Tensor, "b"]
    field: Float[Tensor, "b 5"]  # coefficients of the illumination, quadratic in y and x
    blur: Float[Tensor, "b"]  # standard deviation in pixels
    shrink: Float[Tensor, "b"]  # fraction of the resolution that is kept
    sharpen: Float[Tensor, "b"]  # weight of unsharp masking
    noise: Float[Tensor, "b"]  # standard deviation
    seed: Int[Tensor, "b"]  # seed of the noise


def draw_shift(
    n: int, generator: Generator, strength: float = 1.0, *, group: int = 1, anatomy: bool = True
) -> Shift:
    """Draw shifts for `n` images; each `group` of consecutive images shares one shift, as a site's batch does.

    `strength` scales all components. Without `anatomy` the anatomical and annotation components are neutral.
    """
    shifts = -(-n // group)

    def uniform(low: float, high: float, *columns: int, neutral: float = 0.0, share: float = SHARE) -> Tensor:
        """Uniform between the ends, scaled by the strength, in a `share` of the shifts; neutral in the others."""
        value = neutral + strength * (
            low + (high - low) * torch.rand(shifts, *columns, generator=generator) - neutral
        )
        present = torch.rand(shifts, *([1] * len(columns)), generator=generator) < share
        return torch.where(present, value, neutral)

    shape = 1.0 if anatomy else 0.0
    drawn = Shift(
        zoom=uniform(-0.35, 0.35).exp(),
        angle=uniform(-0.5, 0.5),
        growth=uniform(-0.45, 0.45) * shape,
        inner=uniform(0.4, 1.5, neutral=1.0) * shape + (1 - shape),
        border=uniform(-0.15, 0.15) * shape,
        inner_border=uniform(-0.3, 0.3, share=1.0) * shape,  # annotators always differ here
        transfer=uniform(0.3, 1.0),
        mixing=torch.eye(3) + uniform(-0.15, 0.15, 3, 3),
        gains=uniform(0.75, 1.25, 3, neutral=1.0),
        saturation=uniform(0.3, 1.7, neutral=1.0),
        contrast=uniform(0.5, 1.5, neutral=1.0),
        gamma=uniform(-0.6, 0.6).exp(),
        field=uniform(-0.5, 0.5, 5),
        blur=uniform(0.0, 2.0).clamp(0, 2.0),
        shrink=uniform(0.3, 1.0, neutral=1.0).clamp(0.2, 1.0),
        sharpen=uniform(0.0, 1.5),
        noise=uniform(0.0, 0.08),
        seed=torch.randint(2**62, (shifts,), generator=generator),
    )
    rows = torch.arange(n) // group
    return Shift(*(getattr(drawn, f.name)[rows] for f in fields(drawn)))


def simulate(
    images: Float[Tensor, "b 3 h w"],
    labels: Int[Tensor, "b h w"],
    generator: Generator,
    strength: float = 1.0,
    *,
    group: int = 1,
    anatomy: bool = True,
) -> tuple[Float[Tensor, "b 3 h w"], Int[Tensor, "b h w"]]:
    """Return images in [0, 1] and their labels under random shifts; `draw_shift` explains the arguments."""
    shift = draw_shift(len(images), generator, strength, group=group, anatomy=anatomy)
    other = torch.randperm(len(images), generator=generator).to(images.device)
    return apply_shift(images, labels, shift, images[other])


def apply_shift(
    images: Float[Tensor, "b 3 h w"],
    labels: Int[Tensor, "b h w"],
    shift: Shift,
    style: Float[Tensor, "b 3 h w"],
) -> tuple[Float[Tensor, "b 3 h w"], Int[Tensor, "b h w"]]:
    """Apply shifts to images in [0, 1] and labels; the colour statistics transferred are those of `style`."""
    s = Shift(*(getattr(shift, f.name).to(images.device) for f in fields(shift)))
    images = _recoloured(_inner_contrast(images, labels, s.inner), s, style)
    images, labels = move(images, labels, s.zoom, s.angle, s.growth, s.border, s.inner_border)
    return _optics(images, s, _batch_noise(images, s.seed)), labels


@dataclass(frozen=True)
class PhotometricParameters(Rows):
    """Random parameters of `apply_photometric`."""

    changed: Bool[Tensor, "b"]  # False leaves the image unchanged
    partner: Int[Tensor, "b"]  # row, in the batch, of the image whose colour statistics are transferred
    shift: Shift  # only its photometric components are used


def draw_photometric(n: int, probability: float, generator: Generator) -> PhotometricParameters:
    """Draw photometric shifts for a batch of `n` images, each changed with `probability`."""
    changed = torch.rand(n, generator=generator) < probability
    partner = torch.randperm(n, generator=generator)
    return PhotometricParameters(changed, partner, draw_shift(n, generator, anatomy=False))


def apply_photometric(
    images: Float[Tensor, "b 3 h w"], style: Float[Tensor, "b 3 h w"], parameters: PhotometricParameters
) -> Float[Tensor, "b 3 h w"]:
    """Apply the light, colours, sharpness and noise of shifts to images in [0, 1], as an augmentation.

    `style` are the partners' images. In contrast to `apply_shift`, an image's result depends only on itself and its
    partner, and no value is read back from the device.
    """
    noise = seeded_noise(images, parameters.shift.seed)
    s = Shift(*(getattr(parameters.shift, f.name).to(images.device) for f in fields(Shift)))
    changed = _optics(_recoloured(images, s, style), s, noise)
    return torch.where(_per_image(parameters.changed.to(images.device)), changed, images)


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _inner_contrast(images: Tensor, labels: Tensor, factor: Tensor) -> Tensor:
    """Scale the contrast between the innermost structure and its rim; low contrast makes a cup hard to see."""
    deepest = labels.amax((1, 2), keepdim=True)
    inside = (labels == deepest) & (deepest > 0)
    columns = F.max_pool2d(
        inside[:, None].float(), (25, 1), 1, (12, 0)
    )  # two passes of 25 instead of one of 25²
    around = F.max_pool2d(columns, (1, 25), 1, (0, 12)).bool()[:, 0] & ~inside
    target = _mean_where(images, around)
    soft = _smooth(inside[:, None].to(images))
    return (images + soft * (_per_image(factor) - 1) * (images - target)).clamp(0, 1)


def _mean_where(images: Tensor, where: Bool[Tensor, "b h w"]) -> Tensor:
    weight = where[:, None].to(images)
    return (images * weight).sum((2, 3), keepdim=True) / weight.sum((2, 3), keepdim=True).clamp(min=1)


def _smooth(maps: Tensor) -> Tensor:
    return blur(maps, torch.full((len(maps),), 2.0, device=maps.device))


def _recoloured(images: Tensor, s: Shift, style: Tensor) -> Tensor:
    """Transfer the channel means and deviations of `style`, then change colours, saturation and contrast."""
    mean, std = images.mean((2, 3), keepdim=True), images.std((2, 3), keepdim=True) + 1e-4
    restyled = (images - mean) / std * style.std((2, 3), keepdim=True) + style.mean((2, 3), keepdim=True)
    images = images + _per_image(s.transfer) * (restyled - images)
    images = torch.einsum("bij,bjhw->bihw", s.mixing, images) * s.gains[:, :, None, None]
    grey = (images * images.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)
    images = grey + _per_image(s.saturation) * (images - grey)
    mean = images.mean((1, 2, 3), keepdim=True)
    return (mean + _per_image(s.contrast) * (images - mean)).clamp(0, 1)


def _optics(images: Tensor, s: Shift, noise: Tensor) -> Tensor:
    """Apply illumination, gamma, blur, lower resolution, sharpening and noise, in this order."""
    h, w = images.shape[2:]
    y = torch.linspace(-1, 1, h, device=images.device)[None, :, None]
    x = torch.linspace(-1, 1, w, device=images.device)[None, None, :]
    f = s.field[:, :, None, None]
    light = (
        1 + f[:, 0] * y + f[:, 1] * x + f[:, 2] * (y * y - 0.5) + f[:, 3] * (x * x - 0.5) + f[:, 4] * x * y
    )
    images = (images * light[:, None].clamp(min=0.1)).clamp(0, 1) ** _per_image(s.gamma)
    images = _coarsened(blur(images, s.blur), s.shrink)
    images = images + _per_image(s.sharpen) * (images - _smooth(images))
    return (images + _per_image(s.noise) * noise).clamp(0, 1)


def _coarsened(images: Tensor, kept: Tensor) -> Tensor:
    """Sample each image at the pixel centres of a grid with `kept` of its resolution, then smooth the result."""
    b, _, h, w = images.shape
    y, x = (torch.arange(n, device=images.device)[None] for n in (h, w))
    rows, columns = (
        ((((at * kept[:, None]).floor() + 0.5) / kept[:, None]).floor().long()).clamp(0, n - 1)
        for at, n in ((y, h), (x, w))
    )
    coarse = images[
        torch.arange(b, device=images.device)[:, None, None], :, rows[:, :, None], columns[:, None, :]
    ]
    coarse = blur(coarse.permute(0, 3, 1, 2), 0.5 / kept)
    return torch.where(_per_image(kept < 1), coarse, images)


def _batch_noise(images: Tensor, seeds: Tensor) -> Tensor:
    """Standard normal noise for the whole batch, from the first image's seed."""
    generator = torch.Generator(images.device).manual_seed(int(seeds[0]))
    return torch.randn(images.shape, generator=generator, device=images.device)
