"""A hospital's camera: how what it sees becomes the file it stores."""

import io
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from scipy.ndimage import gaussian_filter

from ttdg.data.synthetic.fields import Field, Picture, grid, smooth_noise, soft_step

Row = tuple[float, float, float]


@dataclass(frozen=True)
class Style:
    """Lengths are in pixels of a 128-pixel picture, levels between 0 (black) and 1 (white)."""

    colour: tuple[Row, Row, Row] = ((1, 0, 0), (0, 1, 0), (0, 0, 1))  # what the stored R, G and B see of the scene
    gamma: float = 1.0
    contrast: float = 1.0
    haze: Row = (0, 0, 0)  # light scattered into every pixel
    lamp: float = 0.0  # how uneven the illumination is
    lamp_angle: float = 0.0
    vignette: float = 0.0
    aperture: float = 2.0  # radius of the field of view; the picture's corner lies at 1.41
    squareness: float = 2.0  # 2 is a round field, more a rounded square
    blur: float = 0.0
    noise: float = 0.0
    resolution: float = 1.0
    quality: int = 95  # JPEG
    drift: float = 0.04  # how much exposure and white balance vary between pictures


def develop(scene: Picture, style: Style, rng: np.random.Generator) -> UInt8[np.ndarray, "h w 3"]:
    """The picture that a camera of this style stores of `scene`."""
    size = len(scene)
    exposure = rng.normal(1, style.drift) * rng.normal(1, style.drift / 2, 3)
    light = scene * _illumination(style, rng, size)[..., None]
    light = gaussian_filter(light, (style.blur * size / 128,) * 2 + (0,), truncate=3) if style.blur else light
    level = _respond(light @ (np.float32(style.colour).T * np.float32(exposure)), style)
    level = level * _field_of_view(style.aperture, style.squareness, size)[..., None]
    grain = rng.standard_normal(level.shape, dtype=np.float32) * np.float32(style.noise)
    return _store(level + grain * (0.4 + level), style)


def _illumination(style: Style, rng: np.random.Generator, size: int) -> Field:
    x, y = grid(size)
    angle = style.lamp_angle + rng.normal(0, 0.3)
    slope = np.float32(np.cos(angle)) * x + np.float32(np.sin(angle)) * y
    uneven = 1 + np.float32(style.lamp) * (slope + 0.3 * smooth_noise(rng, size, 2))
    return np.clip(uneven, 0.15, None) * (1 - np.float32(style.vignette) * (x * x + y * y) / 2)


def _respond(light: Picture, style: Style) -> Picture:
    level = np.clip(light, 0, 1) ** np.float32(style.gamma)
    level = (level - np.float32(0.5)) * np.float32(style.contrast) + np.float32(0.5)
    haze = np.float32(style.haze)
    return np.clip(level, 0, 1) * (1 - haze) + haze


@lru_cache(maxsize=32)
def _field_of_view(aperture: float, squareness: float, size: int) -> Field:
    x, y = grid(size)
    radius = (np.abs(x) ** squareness + np.abs(y) ** squareness) ** (1 / squareness)
    return soft_step((aperture - radius).astype(np.float32), 2 / size)


def _store(level: Picture, style: Style) -> UInt8[np.ndarray, "h w 3"]:
    """Quantised, shrunk to the sensor's own resolution, compressed, and brought back to size."""
    image = Image.fromarray((np.clip(level, 0, 1) * 255 + 0.5).astype(np.uint8))
    full = image.size
    if style.resolution < 1:
        image = image.resize(tuple(round(style.resolution * side) for side in full), Image.Resampling.BILINEAR)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=style.quality)
    return np.asarray(Image.open(file).resize(full, Image.Resampling.BICUBIC))
