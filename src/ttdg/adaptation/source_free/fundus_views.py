"""The strong augmentation of the code of CBMT, DPL and CPR: impulse noise, gamma and an erased rectangle.

It is photometric, so that labels need not move. The published order, probabilities and strengths are kept. The
published salt is written as 1 on a scale of 0 to 255, which is black. White salt is the default here; `salt="black"`
gives the published pixels.
"""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from ttdg.adaptation.options import Option

Salt = Literal["white", "black"]
SALT = Option(
    "colour of the salt noise in strong views: white, or almost black as in the published code",
    "this project: the published value 1 was meant as white, on a scale of 0 to 255",
)

NOISE = 0.004 * 3  # affected coordinates per pixel, before the shares of salt and pepper
SALT_SHARE, PEPPER_SHARE = 0.2, 0.8
GAMMA = (0.5, 3.5)
ERASED_AREA, ERASED_RATIO = (0.02, 0.06), (0.3, 0.6)


def fundus_strong_view(
    images: Float[Tensor, "b c h w"], generator: Generator, salt: Salt = "white"
) -> Float[Tensor, "b c h w"]:
    """Return strongly augmented copies of images in [0, 1]; random numbers come from a CPU generator."""
    noisy = _impulse_noise(images, generator, 1.0 if salt == "white" else 1 / 255)
    return _erase(_gamma(noisy, generator), generator)


def _impulse_noise(images: Tensor, generator: Generator, salt: float) -> Tensor:
    """Salt in a quarter of the images, pepper in another quarter; all channels of a pixel change together."""
    b, _, h, w = images.shape
    few, many = (math.ceil(NOISE * h * w * share) for share in (SALT_SHARE, PEPPER_SHARE))
    kind = torch.rand(b, 1, generator=generator)
    pixels = torch.randint(h * w, (b, many), generator=generator)
    count = torch.where(kind > 0.75, few, torch.where(kind > 0.5, many, 0))
    pixels = torch.where(torch.arange(many) < count, pixels, h * w)  # the last place is outside the image
    hit = torch.zeros(b, h * w + 1, dtype=torch.bool, device=images.device)
    hit.scatter_(1, pixels.to(images.device), True)
    colour = torch.where(kind > 0.75, salt, 0.0).to(images)[:, :, None, None]
    return torch.where(hit[:, None, :-1].unflatten(2, (h, w)), colour, images)


def _gamma(images: Tensor, generator: Generator) -> Tensor:
    """Raise half of the images to a power 1/g."""
    used, g = _coin(len(images), generator), _uniform(len(images), *GAMMA, generator)
    return images.clamp(0, 1) ** torch.where(used, 1 / g, 1.0).to(images)[:, None, None, None]


def _erase(images: Tensor, generator: Generator) -> Tensor:
    """Fill one rectangle, wider than high, with one grey value in half of the images."""
    b, _, h, w = images.shape
    used = _coin(b, generator)
    area, ratio = _uniform(b, *ERASED_AREA, generator) * h * w, _uniform(b, *ERASED_RATIO, generator)
    width = (area / ratio).sqrt().floor().clamp(max=w)
    height = (area * ratio).sqrt().floor().clamp(max=h)
    inside = _between(h, height * used, generator)[:, :, None] & _between(w, width, generator)[:, None]
    grey = _uniform(b, 0.0, 1.0, generator).to(images)[:, None, None, None]
    return torch.where(inside[:, None].to(images.device), grey, images)


def _between(side: int, length: Float[Tensor, " b"], generator: Generator) -> Bool[Tensor, "b side"]:
    """An interval of the given length at a random place in `side` pixels."""
    start = (_uniform(len(length), 0.0, 1.0, generator) * (side - length + 1)).floor()[:, None]
    place = torch.arange(side)
    return (place >= start) & (place < start + length[:, None])


def _coin(count: int, generator: Generator) -> Bool[Tensor, " b"]:
    return torch.rand(count, generator=generator) < 0.5


def _uniform(count: int, low: float, high: float, generator: Generator) -> Float[Tensor, " b"]:
    return low + (high - low) * torch.rand(count, generator=generator)
