"""Elements of the drawings: coordinates, smooth noise, soft edges and irregular closed curves."""

import hashlib
from functools import lru_cache

import numpy as np
from jaxtyping import Float, UInt8

Field = Float[np.ndarray, "h w"]
Picture = Float[np.ndarray, "h w 3"]
Labels = UInt8[np.ndarray, "h w"]
Random = np.random.Generator


def random_for(*key: object) -> Random:
    """Return a generator seeded by the key, so that no image depends on the random numbers of another."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


@lru_cache(maxsize=8)
def pixel_grid(size: int) -> tuple[Field, Field]:
    """Return x and y of the pixel centres. The image spans -1 to 1, and y points down."""
    axis = (np.arange(size, dtype=np.float32) + 0.5) * (2 / size) - 1
    return _frozen(np.tile(axis, (size, 1))), _frozen(np.tile(axis[:, None], (1, size)))


@lru_cache(maxsize=64)
def _splines(size: int, knots: int) -> Float[np.ndarray, "size k"]:
    """Return cubic B-splines along one axis. Rows have unit norm, so that noise keeps its variance."""
    position = (np.arange(size) + 0.5) * (knots / size)
    distance = np.abs(position[:, None] - np.arange(-1, knots + 2))
    inner = 2 / 3 - distance**2 + distance**3 / 2
    outer = np.clip(2 - distance, 0, None) ** 3 / 6
    basis = np.where(distance < 1, inner, outer)
    return _frozen((basis / np.linalg.norm(basis, axis=1, keepdims=True)).astype(np.float32))


def _frozen(array: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    array.flags.writeable = False  # the cached array is shared by all callers
    return array


def smooth_noise(rng: Random, size: int, knots: int, across: int | None = None) -> Field:
    """Return Gaussian noise of unit variance with features 1/knots of the image high and 1/across wide."""
    across = across or knots
    coarse = rng.standard_normal((knots + 3, across + 3), dtype=np.float32)
    return _splines(size, knots) @ coarse @ _splines(size, across).T


def rgb(*levels: int | float) -> Float[np.ndarray, "3"]:
    """Return a colour as a float32 array."""
    return np.array(levels, dtype=np.float32)


def soft_step(value: Field, width: float) -> Field:
    """Return 0 below -width, 1 above width, and a smooth transition between them."""
    t = np.clip(value * (0.5 / width) + 0.5, 0, 1)
    return t * t * (3 - 2 * t)


def paint(picture: Picture, colour: Float[np.ndarray, "*hw 3"], where: Field) -> Picture:
    """Blend a colour into the picture with the opacity `where` of each pixel, 0 to 1."""
    return picture + (colour - picture) * where[..., None]


def closed_curve(rng: Random, angle: Field, waves: range, wobble: float) -> Field:
    """Return the radius, about 1, of a smooth random closed curve at each angle.

    `waves` are the angular frequencies of its deviations from a circle and `wobble` is their size.
    """
    orders = np.array(waves, dtype=np.float32)
    heights = rng.normal(0, wobble, len(orders)).astype(np.float32) / orders**1.5
    phases = rng.uniform(0, 2 * np.pi, len(orders)).astype(np.float32)
    radius = 1 + sum(h * np.cos(k * angle + p) for h, k, p in zip(heights, orders, phases, strict=True))
    return np.clip(radius, 0.6, 1.4)
