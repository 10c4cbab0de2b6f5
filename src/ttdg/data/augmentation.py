"""Augmentation strengths, and the random parameters drawn from them.

Parameters are small CPU tensors, drawn separately from the pixels. In data-parallel training every process draws the
parameters of the whole batch and uses its own rows, so that the result does not depend on the number of processes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor


@dataclass(frozen=True)
class Augmentation:
    """Strengths of an augmentation: the ends of uniform distributions; 0, or scale (1, 1), turns a component off.

    The defaults are the augmentation "standard". Its shifts and scales are large because benchmark images are often
    cropped around the structure: a network must not rely on a central position or on one size.
    """

    flip: bool = True  # flip each axis with probability ½
    rotation: float = 30.0  # ± degrees, clockwise
    scale: tuple[float, float] = (0.75, 1.3)  # magnification of the content, log-uniform
    shift: float = 0.15  # ± fraction of the side
    brightness: float = 0.15  # ± factor
    contrast: float = 0.15  # ± factor, relative to the image's mean
    gamma: float = 0.0  # exponent between 1/(1 + gamma) and 1 + gamma, log-uniform
    saturation: float = 0.0  # ± factor, relative to grey
    gains: float = 0.0  # ± factor of each channel: the colour of the light
    blur: float = 0.0  # largest standard deviation in pixels; at most 2
    noise: float = 0.0  # largest standard deviation; pixels are in [0, 1]

    @classmethod
    def none(cls) -> "Augmentation":
        """Return strengths that leave images unchanged."""
        return cls(flip=False, rotation=0.0, scale=(1.0, 1.0), shift=0.0, brightness=0.0, contrast=0.0)


FOURIER_WINDOW = 0.05  # largest half-width of the exchanged window, as a fraction of the side

AUGMENTATIONS: Mapping[str, Augmentation] = {
    "none": Augmentation.none(),
    "standard": Augmentation(),
    "strong": Augmentation(
        brightness=0.35, contrast=0.4, gamma=0.5, saturation=0.5, gains=0.2, blur=1.5, noise=0.06
    ),
}


RowsType = TypeVar("RowsType", bound="Rows")


class Rows:
    """Base of the parameters of a batch, dataclasses of tensors with one row per image."""

    def __getitem__(self: RowsType, rows: slice) -> RowsType:
        """Return the parameters of some images of the batch."""
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class AugmentParameters(Rows):
    """Random parameters of `augment`."""

    affine: Float[Tensor, "b 2 3"]  # maps output to input coordinates, both in [-1, 1]²
    brightness: Float[Tensor, "b"]
    contrast: Float[Tensor, "b"]
    gamma: Float[Tensor, "b"]
    saturation: Float[Tensor, "b"]
    gains: Float[Tensor, "b 3"]
    blur: Float[Tensor, "b"]
    noise: Float[Tensor, "b"]
    seed: Int[Tensor, "b"]  # seed of the noise

    def __len__(self) -> int:
        return len(self.seed)


def draw(augmentation: Augmentation, n: int, generator: Generator) -> AugmentParameters:
    """Draw the parameters of `n` images from a CPU generator.

    The number of draws does not depend on the strengths.
    """

    def between(low: float, high: float, *columns: int) -> Tensor:
        return low + (high - low) * torch.rand(n, *columns, generator=generator)

    a = augmentation
    gamma = math.log1p(a.gamma)
    return AugmentParameters(
        affine=_affine(
            flip=torch.where(between(0.0, 1.0, 2) < 0.5 * a.flip, -1.0, 1.0),
            angle=between(-math.radians(a.rotation), math.radians(a.rotation)),
            scale=between(math.log(a.scale[0]), math.log(a.scale[1])).exp(),
            shift=between(-2 * a.shift, 2 * a.shift, 2),
        ),
        brightness=between(1 - a.brightness, 1 + a.brightness),
        contrast=between(1 - a.contrast, 1 + a.contrast),
        gamma=between(-gamma, gamma).exp(),
        saturation=between(1 - a.saturation, 1 + a.saturation),
        gains=between(1 - a.gains, 1 + a.gains, 3),
        blur=between(0.0, a.blur),
        noise=between(0.0, a.noise),
        seed=torch.randint(2**62, (n,), generator=generator),
    )


@dataclass(frozen=True)
class FourierParameters(Rows):
    """Random parameters of `exchange_amplitude`."""

    weight: Float[Tensor, "b"]  # weight of the partner's amplitudes; 0 leaves the image unchanged
    window: Float[Tensor, "b"]  # half-width of the window of low frequencies, as a fraction of the side
    partner: Int[Tensor, "b"]  # row of the partner in the batch


def draw_fourier(site: Int[Tensor, "b"], probability: float, generator: Generator) -> FourierParameters:
    """Draw an amplitude exchange for a batch of images from the given sites.

    Each image is changed with `probability`; weights are uniform in [0, 1], windows in [0, `FOURIER_WINDOW`]. The
    partner is a random image of another site; it is another image of the same site if the batch has one site only.
    """
    n = len(site)
    changed, weight, window = torch.rand(3, n, generator=generator)
    score = torch.rand(n, n, generator=generator) + (site[:, None] != site)
    return FourierParameters(
        weight=torch.where(changed < probability, weight, 0.0),
        window=FOURIER_WINDOW * window,
        partner=score.fill_diagonal_(-1.0).argmax(1),
    )


def _affine(
    flip: Float[Tensor, "b 2"],
    angle: Float[Tensor, "b"],
    scale: Float[Tensor, "b"],
    shift: Float[Tensor, "b 2"],
) -> Float[Tensor, "b 2 3"]:
    """Return the inverse map, which resampling needs: undo the shift, then rotate, rescale and flip."""
    cos, sin = angle.cos(), angle.sin()
    rotation = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)
    linear = flip[:, :, None] * rotation / scale[:, None, None]
    return torch.cat([linear, -linear @ shift[:, :, None]], dim=-1)
