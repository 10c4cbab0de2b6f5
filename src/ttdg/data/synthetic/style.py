"""The camera of a hospital, which turns a scene into a stored image."""

import io
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from scipy.ndimage import gaussian_filter

from ttdg.data.synthetic.fields import Field, Picture, Random, pixel_grid, rgb, smooth_noise, soft_step

Number = int | float
RGB = tuple[Number, Number, Number]


@dataclass(frozen=True)
class Style:
    """Properties of a camera. Lengths are in pixels of a 128-pixel image; levels run from 0 (black) to 1 (white)."""

    colour: tuple[RGB, RGB, RGB] = (
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
    )  # rows: the weights of the scene's R, G and B in the stored R, G and B
    gamma: float = 1.0
    contrast: float = 1.0
    haze: RGB = (0, 0, 0)  # scattered light that is added to every pixel
    lamp: float = 0.0  # unevenness of the illumination
    lamp_angle: float = 0.0  # direction of the brightest illumination, in radians
    vignette: float = 0.0
    aperture: float = 2.0  # radius of the field of view; the corner of the image is at 1.41
    squareness: float = 2.0  # of the field of view: 2 is round, larger values are rounded squares
    blur: float = 0.0
    noise: float = 0.0
    resolution: float = 1.0  # of the sensor, relative to the image
    quality: int = 95  # JPEG quality
    drift: float = 0.06  # standard deviation of exposure and white balance between images


def develop(scene: Picture, style: Style, rng: Random) -> UInt8[np.ndarray, "h w 3"]:
    """Return the image that a camera of this style stores of `scene`."""
    size = len(scene)
    exposure = rng.normal(1, style.drift) * rng.normal(1, style.drift / 2, (3, 1))
    light = _blurred(scene * _illumination(style, rng, size)[..., None], style.blur * size / 128)
    level = _respond(light @ (exposure * style.colour).T.astype(np.float32), style)
    level = level * _field_of_view(style.aperture, style.squareness, size)[..., None]
    grain = style.noise * rng.standard_normal(level.shape, dtype=np.float32)
    return _stored(level + grain * (0.4 + level), style)


def _illumination(style: Style, rng: Random, size: int) -> Field:
    x, y = pixel_grid(size)
    angle = style.lamp_angle + rng.normal(0, 0.3)
    slope = math.cos(angle) * x + math.sin(angle) * y
    uneven = 1 + style.lamp * (slope + 0.3 * smooth_noise(rng, size, 2))
    return np.clip(uneven, 0.15, None) * (1 - style.vignette * (x * x + y * y) / 2)


def _blurred(light: Picture, sigma: float) -> Picture:
    return gaussian_filter(light, (sigma, sigma, 0), truncate=3) if sigma else light


def _respond(light: Picture, style: Style) -> Picture:
    level = np.clip(light, 0, 1) ** style.gamma
    level = (level - 0.5) * style.contrast + 0.5
    haze = rgb(*style.haze)
    return np.clip(level, 0, 1) * (1 - haze) + haze


@lru_cache(maxsize=32)
def _field_of_view(aperture: float, squareness: float, size: int) -> Field:
    """Return 1 inside the aperture and 0 outside."""
    x, y = pixel_grid(size)
    radius = (np.abs(x) ** squareness + np.abs(y) ** squareness) ** (1 / squareness)
    return soft_step(aperture - radius, 2 / size)


def _stored(level: Picture, style: Style) -> UInt8[np.ndarray, "h w 3"]:
    """Quantise, reduce to the sensor's resolution, compress as JPEG, and resize to the original size."""
    image = Image.fromarray((np.clip(level, 0, 1) * 255 + 0.5).astype(np.uint8))
    width, height = image.size
    sensor = round(width * style.resolution), round(height * style.resolution)
    file = io.BytesIO()
    image.resize(sensor, Image.Resampling.BILINEAR).save(file, "JPEG", quality=style.quality)
    return np.asarray(Image.open(file).resize((width, height), Image.Resampling.BICUBIC))
