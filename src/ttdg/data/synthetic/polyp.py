"""Drawing a colonoscopy frame: the folded and lit wall of the bowel with one to three polyps."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ttdg.data.synthetic.fields import (
    Field,
    Labels,
    Picture,
    Random,
    closed_curve,
    paint,
    pixel_grid,
    rgb,
    smooth_noise,
    soft_step,
)

REACH = 0.85  # largest distance of a polyp from the centre; inside the field of view of every hospital


@dataclass(frozen=True)
class Polyps:
    """The population of a hospital."""

    often: tuple[float, float, float] = (0.6, 0.28, 0.12)  # probabilities of one, two and three polyps
    radius: tuple[float, float] = (0.19, 0.36)  # smallest and largest; the image is 2 wide


@dataclass(frozen=True)
class _Patient:
    """The properties that all frames of a patient share."""

    pallor: float
    redness: float  # of the polyps, relative to the wall
    folds: float


def _patient(rng: Random) -> _Patient:
    return _Patient(float(rng.normal()), float(rng.normal(1, 0.3)), float(rng.uniform(0.6, 1.2)))


def draw_polyps(polyps: Polyps, patient: Random, rng: Random, size: int) -> tuple[Picture, Labels]:
    """Return the light from one view into the bowel, and labels: 0 background, 1 polyp."""
    person = _patient(patient)
    depth, height = _blobs(rng, polyps, size)
    wall, shade = _wall(rng, person.folds, size)
    skin = soft_step(depth, 0.02)
    pits = smooth_noise(rng, size, 26)
    shade = shade + (1 - shade) * 0.5 * skin
    groove = 1 - 0.12 * np.exp(-np.abs(depth + 0.02) / 0.03)
    picture = _tissue(rng, person, skin, pits) * (shade * groove)[..., None]
    relief = wall * (1 - 0.7 * skin) + 0.8 * height + 0.004 * skin * pits
    return _lit(rng, picture, relief, shade), (depth > 0).astype(np.uint8)


def _blobs(rng: Random, polyps: Polyps, size: int) -> tuple[Field, Field]:
    """Return the signed distance to the nearest polyp's outline (positive inside) and the polyps' height."""
    x, y = pixel_grid(size)
    count = 1 + int(rng.choice(3, p=polyps.often))
    radii = rng.uniform(*polyps.radius, count) * (1, 0.8, 0.65)[count - 1]
    depths, heights = [], []
    for centre, radius in zip(_centres(rng, radii), radii.tolist(), strict=True):
        u, v = x - float(centre[0]), y - float(centre[1])
        reach = np.hypot(u, v) / (radius * closed_curve(rng, np.arctan2(v, u), range(2, 5), wobble=0.25))
        depths.append(radius * (1 - reach))
        heights.append(radius * np.clip(1 - reach**2, 0, None) ** 0.75)
    return np.maximum.reduce(depths), np.maximum.reduce(heights)


def _centres(rng: Random, radii: Float[np.ndarray, "n"]) -> list[Float[np.ndarray, "2"]]:
    """Place each polyp at the one of 24 random positions that is farthest from the earlier polyps."""
    centres: list[Float[np.ndarray, "2"]] = []
    for radius in radii:
        distance = (REACH - 1.2 * radius) * np.sqrt(rng.uniform(0, 1, 24))
        angle = rng.uniform(0, 2 * np.pi, 24)
        positions = np.stack([distance * np.cos(angle), distance * np.sin(angle)], -1)
        gaps = [np.hypot(*(positions - centre).T) - r for centre, r in zip(centres, radii, strict=False)]
        centres.append(positions[np.argmax(np.min(gaps, axis=0)) if gaps else 0])
    return centres


def _wall(rng: Random, depth: float, size: int) -> tuple[Field, Field]:
    """Return the relief and the brightness of the wall: ring folds around a dark lumen."""
    x, y = pixel_grid(size)
    angle, distance = rng.uniform(0, 2 * math.pi), rng.uniform(0.3, 1.2)
    lumen = np.hypot(x - distance * math.cos(angle), y - distance * math.sin(angle))
    lumen = np.abs(lumen * (1 + 0.12 * smooth_noise(rng, size, 3)))
    rings = 1.6 * np.log(lumen + 0.12) + 0.22 * smooth_noise(rng, size, 4)
    phase = 2 * math.pi * (rings + float(rng.uniform()))
    folds = 0.035 * depth * (np.sin(phase) + 0.35 * np.sin(2 * phase + 0.8))
    rough = 0.05 * smooth_noise(rng, size, 5) + 0.004 * smooth_noise(rng, size, 30)
    return folds * np.clip(lumen, 0.2, 1.5) + rough, 0.18 + 0.82 * soft_step(lumen - 0.38, 0.36)


def _tissue(rng: Random, person: _Patient, skin: Field, pits: Field) -> Picture:
    """Draw pink mucosa with faint vessels; polyps are redder and finely pitted."""
    size = len(skin)
    pink = rgb(0.84, 0.54, 0.47) * rgb(1, 1 - 0.05 * person.pallor, 1 - 0.06 * person.pallor)
    mottle = 1 + 0.05 * smooth_noise(rng, size, 4) + 0.03 * smooth_noise(rng, size, 16)
    veins = np.exp(-np.abs(smooth_noise(rng, size, 8)) / 0.07)
    picture = pink * mottle[..., None] * (1 - veins[..., None] * rgb(0.05, 0.10, 0.09))
    red = pink * rgb(0.98, 0.80, 0.80) ** person.redness
    return paint(picture, red * (1 + 0.06 * pits)[..., None], 0.9 * skin)


def _lit(rng: Random, picture: Picture, relief: Field, shade: Field) -> Picture:
    """Shade the picture by a lamp beside the lens and add highlights on wet surfaces."""
    size = len(relief)
    dy, dx = np.gradient(relief, 2 / size)
    wet_y, wet_x = np.gradient(0.006 * smooth_noise(rng, size, 20), 2 / size)
    lamp_x, lamp_y = rng.uniform(-0.45, 0.45, 2).tolist()
    shine_x, shine_y = rng.normal((lamp_x, lamp_y), 0.35).tolist()
    lengths = np.sqrt((1 + dx * dx + dy * dy) * (1 + lamp_x**2 + lamp_y**2))
    diffuse = np.clip((1 - lamp_x * dx - lamp_y * dy) / lengths, 0, None)
    glint = np.exp(-((dx + wet_x + shine_x) ** 2 + (dy + wet_y + shine_y) ** 2) / 0.012)
    lit = picture * (0.35 + 0.7 * diffuse)[..., None]
    return paint(lit, rgb(1.0, 0.98, 0.95), glint * np.clip(1.5 * shade - 0.5, 0, 0.9))
