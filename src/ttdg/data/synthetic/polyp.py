"""Drawn colonoscopy: a folded mucosa as a lit relief, with one to three polyps bulging from it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from ttdg.data.synthetic.fields import Field, Picture, grid, outline, paint, smooth_noise, soft_step


@dataclass(frozen=True)
class Polyps:
    """What a hospital finds: how often one, two and three polyps, and their radii (the picture is 2 wide)."""

    often: tuple[float, float, float] = (0.6, 0.28, 0.12)
    radius: tuple[float, float] = (0.18, 0.36)


@dataclass(frozen=True)
class Mucosa:
    """What all pictures of a patient share."""

    redness: float
    polyp_redness: float
    folds: float


def _mucosa(rng: np.random.Generator) -> Mucosa:
    return Mucosa(float(rng.normal()), float(rng.normal(1, 0.35)), float(rng.uniform(0.6, 1.2)))


def draw_polyps(
    patient: np.random.Generator, rng: np.random.Generator, polyps: Polyps, size: int
) -> tuple[Picture, UInt8[np.ndarray, "h w"]]:
    """Reflectance and labels (0 background, 1 polyp) of one view into `patient`."""
    mucosa = _mucosa(patient)
    depth, bulge = _blobs(rng, polyps, size)
    wall, shade = _wall(rng, mucosa, size)
    skin = soft_step(depth, 0.02)
    pits = smooth_noise(rng, size, 26)
    shade = shade + (1 - shade) * 0.5 * skin
    groove = 1 - 0.15 * np.exp(-np.abs(depth + 0.02) / 0.03)
    picture = _colour(rng, mucosa, skin, pits, size) * (shade * groove)[..., None]
    relief = wall * (1 - 0.7 * skin) + 0.95 * bulge + 0.004 * skin * pits
    return _lit(rng, picture, relief, shade), (depth > 0).astype(np.uint8)


def _blobs(rng: np.random.Generator, polyps: Polyps, size: int) -> tuple[Field, Field]:
    """How far inside its nearest polyp each pixel lies (negative outside), and how high the polyps rise."""
    x, y = grid(size)
    count = 1 + int(rng.choice(3, p=polyps.often))
    radii = rng.uniform(*polyps.radius, count) * (1, 0.8, 0.65)[count - 1]
    depth, height = np.full((size, size), -np.inf, dtype=np.float32), np.zeros((size, size), dtype=np.float32)
    for centre, radius in zip(_centres(rng, radii), radii.astype(np.float32), strict=True):
        u, v = x - np.float32(centre[0]), y - np.float32(centre[1])
        reach = np.hypot(u, v) / (radius * outline(rng, np.arctan2(v, u), range(2, 5), wobble=0.25))
        depth = np.maximum(depth, radius * (1 - reach))
        height = np.maximum(height, radius * np.clip(1 - reach**2, 0, None) ** 0.75)
    return depth, height


def _centres(rng: np.random.Generator, radii: Float[np.ndarray, "n"]) -> list[Float[np.ndarray, "2"]]:
    """Each polyp where, of some random places within the field, it is farthest from those before it."""
    centres: list[Float[np.ndarray, "2"]] = []
    for radius in radii:
        reach, angle = (0.85 - radius) * np.sqrt(rng.uniform(0, 1, 24)), rng.uniform(0, 2 * np.pi, 24)
        places = np.stack([reach * np.cos(angle), reach * np.sin(angle)], -1)
        gaps = [np.hypot(*(places - c).T) - r - radius for c, r in zip(centres, radii, strict=False)]
        best = int(np.argmax(np.min(gaps, axis=0))) if gaps else 0
        centres.append(places[best])
    return centres


def _wall(rng: np.random.Generator, mucosa: Mucosa, size: int) -> tuple[Field, Field]:
    """The bowel seen along its length: ring folds around a dark lumen, as relief and as brightness."""
    x, y = grid(size)
    angle, reach = rng.uniform(0, 2 * np.pi), rng.uniform(0.3, 1.2)
    u, v = x - np.float32(reach * np.cos(angle)), y - np.float32(reach * np.sin(angle))
    distance = np.hypot(u, v) * (1 + 0.12 * smooth_noise(rng, size, 3))
    rings = np.log(np.abs(distance) + 0.12) * np.float32(1.6) + 0.22 * smooth_noise(rng, size, 4)
    phase = np.float32(2 * np.pi) * (rings + np.float32(rng.uniform()))
    folds = 0.035 * mucosa.folds * (np.sin(phase) + 0.35 * np.sin(2 * phase + 0.8))
    relief = folds * np.clip(distance, 0.2, 1.5) + 0.05 * smooth_noise(rng, size, 5) + 0.004 * smooth_noise(rng, size, 30)
    return relief, 0.18 + 0.82 * soft_step(distance - 0.38, 0.36)


def _colour(rng: np.random.Generator, mucosa: Mucosa, skin: Field, pits: Field, size: int) -> Picture:
    """Pink mucosa with faint vessels; polyps redder (or paler) and finely pitted."""
    wall = np.float32([0.84, 0.54, 0.47]) * np.float32([1, 1 - 0.05 * mucosa.redness, 1 - 0.06 * mucosa.redness])
    mottle = 1 + 0.05 * smooth_noise(rng, size, 4) + 0.03 * smooth_noise(rng, size, 16)
    veins = 0.10 * np.exp(-np.abs(smooth_noise(rng, size, 8)) / 0.07)
    picture = wall * mottle[..., None] * (1 - veins[..., None] * np.float32([0.5, 1, 0.9]))
    polyp = wall * np.float32([1, 0.80, 0.80]) ** np.float32(mucosa.polyp_redness)
    return paint(picture, polyp * (1 + 0.06 * pits)[..., None], 0.9 * skin)


def _lit(rng: np.random.Generator, picture: Picture, relief: Field, shade: Field) -> Picture:
    """Shaded by a lamp beside the lens; wet facets that face between lamp and lens glint."""
    size = len(relief)
    dy, dx = np.gradient(relief, np.float32(2 / size))
    wet = smooth_noise(rng, size, 20) * np.float32(0.006)
    wy, wx = np.gradient(wet, np.float32(2 / size))
    lamp = np.float32(rng.uniform(-0.45, 0.45, 2))
    diffuse = (1 - lamp[0] * dx - lamp[1] * dy) / np.sqrt((1 + dx * dx + dy * dy) * (1 + lamp @ lamp))
    sheen = lamp + np.float32(rng.normal(0, 0.35, 2))
    glint = np.exp(-((dx + wx + sheen[0]) ** 2 + (dy + wy + sheen[1]) ** 2) / 0.012)
    lit = picture * (0.35 + 0.7 * np.clip(diffuse, 0, None))[..., None]
    return paint(lit, np.float32([1.0, 0.98, 0.95]), glint * np.clip(shade * 1.5 - 0.5, 0, 0.9))
