"""What every drawing is made of: a grid of coordinates, smooth noise, soft edges, colours."""

import hashlib
from functools import lru_cache

import numpy as np
from jaxtyping import Float

Field = Float[np.ndarray, "h w"]
Picture = Float[np.ndarray, "h w 3"]


def stream(*key: object) -> np.random.Generator:
    """A generator of its own for every key: what one picture draws never depends on another."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


@lru_cache(maxsize=8)
def grid(size: int) -> tuple[Field, Field]:
    """x and y of the pixel centres; the picture spans -1 to 1, y pointing down."""
    axis = ((np.arange(size, dtype=np.float32) + 0.5) * (2 / size) - 1).astype(np.float32)
    x, y = np.broadcast_to(axis, (size, size)).copy(), np.broadcast_to(axis[:, None], (size, size)).copy()
    x.flags.writeable = y.flags.writeable = False
    return x, y


@lru_cache(maxsize=64)
def _splines(size: int, knots: int) -> Float[np.ndarray, "size k"]:
    """Cubic B-splines along one axis, each row of unit length so that noise keeps unit variance."""
    place = (np.arange(size) + 0.5) * (knots / size)
    distance = np.abs(place[:, None] - np.arange(-1, knots + 2)[None])
    near = 2 / 3 - distance**2 + distance**3 / 2
    far = np.clip(2 - distance, 0, None) ** 3 / 6
    basis = np.where(distance < 1, near, far)
    basis = (basis / np.linalg.norm(basis, axis=1, keepdims=True)).astype(np.float32)
    basis.flags.writeable = False
    return basis


def smooth_noise(rng: np.random.Generator, size: int, knots: int, across: int | None = None) -> Field:
    """Gaussian noise of unit variance with features about 1/knots of the picture (1/across along x)."""
    across = across or knots
    coarse = rng.standard_normal((knots + 3, across + 3), dtype=np.float32)
    return _splines(size, knots) @ coarse @ _splines(size, across).T


def soft_step(value: Field, width: float) -> Field:
    """0 below -width, 1 above width, smooth between."""
    t = np.clip(value * np.float32(0.5 / width) + np.float32(0.5), 0, 1)
    return t * t * (3 - 2 * t)


def paint(picture: Picture, colour: Picture | Float[np.ndarray, "3"], where: Field) -> Picture:
    return picture + (colour - picture) * where[..., None]


def outline(
    rng: np.random.Generator, angle: Field, harmonics: range, wobble: float
) -> Field:
    """The radius, about 1, of a smooth random closed curve as a function of the angle."""
    orders = np.array(harmonics, dtype=np.float32)
    heights = rng.normal(0, wobble, len(orders)).astype(np.float32) / orders**1.5
    phases = rng.uniform(0, 2 * np.pi, len(orders)).astype(np.float32)
    waves = (h * np.cos(k * angle + p) for h, k, p in zip(heights, orders, phases, strict=True))
    return np.clip(1 + sum(waves, np.zeros_like(angle)), 0.6, 1.4)
