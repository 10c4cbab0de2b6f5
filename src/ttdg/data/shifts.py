"""Simulated hospitals: source images as another scanner, another protocol or another population would show them.

What may be chosen at all is chosen on these, never on a target. A shift has an optical part (light, colours,
sharpness, noise), a part in the anatomy (size of the structure, contrast of what lies inside it) and a part in the
annotation (where the boundary is drawn). Each component is present in a share of the shifts only, so that small and
single shifts occur as well as large ones. Pure functions of a generator on the CPU; pixels stay on their device.
"""

import math
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.nn import functional as F

from ttdg.data.transforms import GREY, blur

SHARE = 0.5  # of the shifts that contain a given component


@dataclass(frozen=True)
class Shift:
    """One row for each image; neutral values leave the image as it is."""

    zoom: Float[Tensor, "b"]
    angle: Float[Tensor, "b"]
    growth: Float[Tensor, "b"]  # of the structure alone, log scale
    inner: Float[Tensor, "b"]  # contrast of the innermost label against what surrounds it
    border: Float[Tensor, "b"]  # growth of a structure in the annotation alone, log scale
    inner_border: Float[Tensor, "b"]  # the same of a structure inside another
    transfer: Float[Tensor, "b"]  # weight of another image's colour statistics
    mixing: Float[Tensor, "b 3 3"]  # colour matrix
    gains: Float[Tensor, "b 3"]
    saturation: Float[Tensor, "b"]
    contrast: Float[Tensor, "b"]
    gamma: Float[Tensor, "b"]
    field: Float[Tensor, "b 5"]  # illumination: quadratic in y, x
    blur: Float[Tensor, "b"]
    shrink: Float[Tensor, "b"]  # resolution kept
    sharpen: Float[Tensor, "b"]
    noise: Float[Tensor, "b"]
    seed: Int[Tensor, "b"]


def draw_shift(
    n: int, generator: Generator, strength: float = 1.0, *, group: int = 1, anatomy: bool = True
) -> Shift:
    """Shifts for `n` images; each `group` of neighbours shares one, as a batch from one hospital does."""
    k = -(-n // group)

    def some(low: float, high: float, *columns: int, neutral: float = 0.0, share: float = SHARE) -> Tensor:
        """Even between the ends, scaled by the strength, and neutral in the other shifts."""
        value = neutral + strength * (
            low + (high - low) * torch.rand(k, *columns, generator=generator) - neutral
        )
        present = torch.rand(k, *([1] * len(columns)), generator=generator) < share
        return torch.where(present, value, neutral)

    shape = 1.0 if anatomy else 0.0
    drawn = Shift(
        zoom=some(-0.35, 0.35).exp(),
        angle=some(-0.5, 0.5),
        growth=some(-0.45, 0.45) * shape,
        inner=some(0.4, 1.5, neutral=1.0) * shape + (1 - shape),
        border=some(-0.15, 0.15) * shape,
        inner_border=some(-0.3, 0.3, share=1.0) * shape,  # no two hospitals draw it alike
        transfer=some(0.3, 1.0),
        mixing=torch.eye(3) + some(-0.15, 0.15, 3, 3),
        gains=some(0.75, 1.25, 3, neutral=1.0),
        saturation=some(0.3, 1.7, neutral=1.0),
        contrast=some(0.5, 1.5, neutral=1.0),
        gamma=some(-0.6, 0.6).exp(),
        field=some(-0.5, 0.5, 5),
        blur=some(0.0, 2.0).clamp(0, 2.0),
        shrink=some(0.3, 1.0, neutral=1.0).clamp(0.2, 1.0),
        sharpen=some(0.0, 1.5),
        noise=some(0.0, 0.08),
        seed=torch.randint(2**62, (k,), generator=generator),
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
    """Images in [0, 1] and their labels at a simulated hospital."""
    shift = draw_shift(len(images), generator, strength, group=group, anatomy=anatomy)
    other = torch.randperm(len(images), generator=generator).to(images.device)
    return apply_shift(images, labels, shift, images[other])


def apply_shift(
    images: Float[Tensor, "b 3 h w"],
    labels: Int[Tensor, "b h w"],
    shift: Shift,
    style: Float[Tensor, "b 3 h w"],
) -> tuple[Float[Tensor, "b 3 h w"], Int[Tensor, "b h w"]]:
    """`style` holds the images whose colour statistics are borrowed."""
    s = Shift(*(getattr(shift, f.name).to(images.device) for f in fields(shift)))
    images = _restyled(_inner_contrast(images, labels, s.inner), s, style)
    images, labels = _moved(images, labels, s)
    return _optics(images, s), labels


def _each(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _inner_contrast(images: Tensor, labels: Tensor, factor: Tensor) -> Tensor:
    """The innermost structure fades into, or stands out from, its rim: what makes a cup hard to see."""
    deepest = labels.amax((1, 2), keepdim=True)
    inside = (labels == deepest) & (deepest > 0)
    around = F.max_pool2d(inside[:, None].float(), 25, 1, 12).bool()[:, 0] & ~inside
    target = _mean_where(images, around)
    soft = _each_blurred(inside[:, None].to(images))
    return (images + soft * (_each(factor) - 1) * (images - target)).clamp(0, 1)


def _mean_where(images: Tensor, where: Bool[Tensor, "b h w"]) -> Tensor:
    weight = where[:, None].to(images)
    return (images * weight).sum((2, 3), keepdim=True) / weight.sum((2, 3), keepdim=True).clamp(min=1)


def _each_blurred(maps: Tensor) -> Tensor:
    return blur(maps, torch.full((len(maps),), 2.0, device=maps.device))


def _restyled(images: Tensor, s: Shift, style: Tensor) -> Tensor:
    """Another image's channel means and deviations, then colours as another sensor sees them."""
    mean, std = images.mean((2, 3), keepdim=True), images.std((2, 3), keepdim=True) + 1e-4
    borrowed = (images - mean) / std * style.std((2, 3), keepdim=True) + style.mean((2, 3), keepdim=True)
    images = images + _each(s.transfer) * (borrowed - images)
    images = torch.einsum("bij,bjhw->bihw", s.mixing, images) * s.gains[:, :, None, None]
    grey = (images * images.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)
    images = grey + _each(s.saturation) * (images - grey)
    mean = images.mean((1, 2, 3), keepdim=True)
    return (mean + _each(s.contrast) * (images - mean)).clamp(0, 1)


def _moved(images: Tensor, labels: Tensor, s: Shift) -> tuple[Tensor, Tensor]:
    """Zoom and rotation of the whole picture, and growth of the structure about its own centre."""
    b, _, h, w = images.shape
    cos, sin = s.angle.cos() / s.zoom, s.angle.sin() / s.zoom
    zero = torch.zeros_like(cos)
    affine = torch.stack([torch.stack([cos, -sin, zero], -1), torch.stack([sin, cos, zero], -1)], 1)
    grid = F.affine_grid(affine, [b, 1, h, w], align_corners=False)
    # An outline is seen; one inside another is a matter of judgement.
    border = torch.where(labels.amax((1, 2)) > 1, s.inner_border, s.border)
    seen, read = _grown(grid, labels, s.growth), _grown(grid, labels, s.growth + border)
    images = F.grid_sample(images, seen, padding_mode="reflection", align_corners=False)
    return images, _annotated(_sampled(labels, seen), _sampled(labels, read))


def _sampled(labels: Tensor, grid: Tensor) -> Tensor:
    moved = F.grid_sample(
        labels[:, None].to(grid), grid, mode="nearest", padding_mode="reflection", align_corners=False
    )
    return moved[:, 0].to(labels.dtype)


def _annotated(seen: Tensor, read: Tensor) -> Tensor:
    """Another reader draws the innermost boundary further out or in; it stays inside what surrounds it."""
    deepest = seen.amax((1, 2), keepdim=True).clamp(min=1)
    inner = (read >= deepest) & ((seen > 0) | (deepest == 1))
    return torch.where(inner, deepest, torch.minimum(seen, deepest - 1))


def _grown(grid: Tensor, labels: Tensor, growth: Tensor) -> Tensor:
    """A smooth radial warp: e^growth at the structure's centre, nothing far outside it."""
    h, w = labels.shape[1:]
    weight = (labels > 0).to(grid)
    total = weight.sum((1, 2)).clamp(min=1)
    y = ((torch.arange(h, device=grid.device) + 0.5) / h * 2 - 1)[None, :, None]
    x = ((torch.arange(w, device=grid.device) + 0.5) / w * 2 - 1)[None, None, :]
    centre = torch.stack([(weight * x).sum((1, 2)), (weight * y).sum((1, 2))], -1) / total[:, None]
    radius = (4 * total / (h * w) / math.pi).sqrt().clamp(min=0.1)  # of a disc of that area, in grid units
    away = grid - centre[:, None, None]
    reach = torch.exp(-away.square().sum(-1) / (2 * (1.5 * radius)[:, None, None].square()))
    present = (weight.sum((1, 2)) > 0).to(grid)
    factor = torch.exp(-growth * present)[:, None, None] - 1
    return grid + (factor * reach)[..., None] * away


def _optics(images: Tensor, s: Shift) -> Tensor:
    h, w = images.shape[2:]
    y = torch.linspace(-1, 1, h, device=images.device)[None, :, None]
    x = torch.linspace(-1, 1, w, device=images.device)[None, None, :]
    f = s.field[:, :, None, None]
    light = (
        1 + f[:, 0] * y + f[:, 1] * x + f[:, 2] * (y * y - 0.5) + f[:, 3] * (x * x - 0.5) + f[:, 4] * x * y
    )
    images = (images * light[:, None].clamp(min=0.1)).clamp(0, 1) ** _each(s.gamma)
    images = _coarser(blur(images, s.blur), s.shrink)
    images = images + _each(s.sharpen) * (images - _each_blurred(images))
    return (images + _each(s.noise) * _noise(images, s.seed)).clamp(0, 1)


def _coarser(images: Tensor, kept: Tensor) -> Tensor:
    """Seen on a coarser grid: sampled where the coarse pixel's centre lies, then smoothed as a screen would."""
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
    return torch.where(_each(kept < 1), coarse, images)


def _noise(images: Tensor, seeds: Tensor) -> Tensor:
    generator = torch.Generator(images.device).manual_seed(int(seeds[0]))
    return torch.randn(images.shape, generator=generator, device=images.device)
