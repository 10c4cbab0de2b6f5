"""How strongly to augment, and the numbers drawn for it: small values on the CPU, apart from the pixels.

Under data-parallel training every process draws the same numbers for the whole batch and takes its own rows,
so the result does not depend on how many processes share the work.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor


@dataclass(frozen=True)
class Augmentation:
    """Strengths; each is the end of a range drawn from evenly, and 0 (or scale (1, 1)) leaves its part out.

    The default, "standard", is chosen so that a model cannot rely on a structure lying in the middle at one
    size, as it does in crops around it.
    """

    flip: bool = True  # each axis with probability ½
    rotation: float = 30.0  # ± degrees, clockwise
    scale: tuple[float, float] = (0.75, 1.3)  # of the picture's content; even on a log scale
    shift: float = 0.15  # ± of the side
    brightness: float = 0.15  # ± factor
    contrast: float = 0.15  # ± factor about the image's mean
    gamma: float = 0.0  # ± exponent, on a log scale
    saturation: float = 0.0  # ± factor about grey
    gains: float = 0.0  # ± factor for each channel: the colour of the light
    blur: float = 0.0  # up to, standard deviation in pixels; at most 2
    noise: float = 0.0  # up to, standard deviation, white being 1

    @classmethod
    def none(cls) -> "Augmentation":
        return cls(flip=False, rotation=0.0, scale=(1.0, 1.0), shift=0.0, brightness=0.0, contrast=0.0)


AUGMENTATIONS: Mapping[str, Augmentation] = {
    "none": Augmentation.none(),
    "standard": Augmentation(),
    "strong": Augmentation(
        brightness=0.35, contrast=0.4, gamma=0.5, saturation=0.5, gains=0.2, blur=1.5, noise=0.06
    ),
}


@dataclass(frozen=True)
class AugmentParameters:
    """What was drawn, a row for each image; `parameters[a:b]` are the rows of a part of the batch."""

    affine: Float[Tensor, "b 2 3"]  # from places in the result to places in the image, both in [-1, 1]²
    brightness: Float[Tensor, "b"]
    contrast: Float[Tensor, "b"]
    gamma: Float[Tensor, "b"]
    saturation: Float[Tensor, "b"]
    gains: Float[Tensor, "b 3"]
    blur: Float[Tensor, "b"]
    noise: Float[Tensor, "b"]
    seed: Int[Tensor, "b"]  # of the noise

    def __getitem__(self, rows: slice) -> "AugmentParameters":
        return AugmentParameters(*(getattr(self, field.name)[rows] for field in fields(self)))

    def __len__(self) -> int:
        return len(self.seed)


def draw(augmentation: Augmentation, n: int, generator: Generator) -> AugmentParameters:
    """Numbers for `n` images from a generator on the CPU, which moves as far whatever the strengths."""

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


def _affine(
    flip: Float[Tensor, "b 2"],
    angle: Float[Tensor, "b"],
    scale: Float[Tensor, "b"],
    shift: Float[Tensor, "b 2"],
) -> Float[Tensor, "b 2 3"]:
    """The inverse map, as sampling needs it: move back, then turn, unscale and mirror."""
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)
    linear = flip[:, :, None] * turn / scale[:, None, None]
    return torch.cat([linear, -linear @ shift[:, :, None]], dim=-1)
