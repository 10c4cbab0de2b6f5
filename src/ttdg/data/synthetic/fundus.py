"""A drawn optic nerve head: retina, nested disc and cup, vessels across them."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from ttdg.data.synthetic.fields import Field, Picture, grid, outline, paint, smooth_noise, soft_step
from ttdg.data.synthetic.vessels import draw_vessels

RIM, CUP = 1, 2


@dataclass(frozen=True)
class Eyes:
    """Whom a hospital sees: disc radius (the picture is 2 wide) and cup-to-disc ratio, each a mean and a spread."""

    disc: tuple[float, float] = (0.36, 0.03)
    cup: tuple[float, float] = (0.52, 0.07)


@dataclass(frozen=True)
class Eye:
    """What both eyes of a patient share."""

    disc: float
    cup: float
    pigment: float
    vessel: float


def _eye(rng: np.random.Generator, eyes: Eyes) -> Eye:
    return Eye(
        disc=float(np.clip(rng.normal(*eyes.disc), 0.24, 0.5)),
        cup=float(np.clip(rng.normal(*eyes.cup), 0.32, 0.76)),
        pigment=float(rng.normal()),
        vessel=float(rng.uniform(0.036, 0.05)),
    )


def draw_fundus(
    patient: np.random.Generator, rng: np.random.Generator, eyes: Eyes, size: int
) -> tuple[Picture, UInt8[np.ndarray, "h w"]]:
    """Reflectance and labels (0 background, 1 rim, 2 cup) of one eye of `patient`."""
    eye = _eye(patient, eyes)
    side = int(rng.choice([-1, 1]))  # where the macula lies: a right or a left eye
    centre = rng.normal(0, 0.07, 2)
    disc = _depth(rng, size, centre, eye.disc, tall=1.08)
    nudge = np.array([0.10 * side, 0]) + rng.normal(0, 0.05, 2)
    cup = _depth(rng, size, centre + nudge * eye.disc, eye.disc * eye.cup, tall=1.04)
    cup = np.minimum(cup, disc - np.float32(0.1 * eye.disc))  # a rim all the way round

    picture = _retina(rng, size, eye, side, disc)
    picture = _nerve_head(rng, picture, side, disc, cup)
    origin = centre + np.array([-0.1 * side * eye.disc, 0])
    vessels = draw_vessels(rng, size, origin, side, eye.vessel)
    vessels = vessels * (1 - 0.3 * soft_step(cup, 0.1))  # they dive into the cup
    picture = picture * (1 - vessels[..., None] * np.float32([0.27, 0.55, 0.50]))
    return picture, (disc > 0).astype(np.uint8) * RIM + (cup > 0).astype(np.uint8) * (CUP - RIM)


def _depth(
    rng: np.random.Generator, size: int, centre: Float[np.ndarray, "2"], radius: float, tall: float
) -> Field:
    """How far inside a wobbly ellipse each pixel lies, in picture units; negative outside."""
    x, y = grid(size)
    u, v = x - np.float32(centre[0]), y - np.float32(centre[1])
    tilt, stretch = rng.normal(0, 0.25), np.sqrt(tall * rng.normal(1, 0.04))
    c, s = np.float32(np.cos(tilt)), np.float32(np.sin(tilt))
    u, v = (u * c + v * s) * np.float32(stretch), (v * c - u * s) / np.float32(stretch)
    edge = outline(rng, np.arctan2(v, u), range(2, 5), wobble=0.08)
    return np.float32(radius) * (1 - np.hypot(u, v) / (np.float32(radius) * edge))


def _retina(rng: np.random.Generator, size: int, eye: Eye, side: int, disc: Field) -> Picture:
    """Orange, mottled, streaked by the choroid, darker towards the macula, glowing around the disc."""
    x, y = grid(size)
    mottle = 0.05 * smooth_noise(rng, size, 4) + 0.04 * smooth_noise(rng, size, 14) + 0.02 * smooth_noise(rng, size, 48)
    streaks = -np.abs(smooth_noise(rng, size, 7, across=12)) * 0.06
    macula = -0.22 * np.exp(-((x - 1.15 * side) ** 2 + y**2) / 0.5)
    glow = 0.16 * np.exp(np.minimum(disc, 0) / 0.16)
    light = 1 + mottle + streaks + macula + glow
    base = np.float32([0.66, 0.35, 0.16]) * np.float32([1, 1 - 0.09 * eye.pigment, 1 - 0.14 * eye.pigment])
    warmth = np.float32([0.02, 0.05, 0.06]) * smooth_noise(rng, size, 3)[..., None]
    return light[..., None] * base * (1 + warmth)


def _nerve_head(rng: np.random.Generator, picture: Picture, side: int, disc: Field, cup: Field) -> Picture:
    """A pink-yellow disc, paler to the temporal side, with a bright cup that deepens inwards."""
    size = len(disc)
    x, _ = grid(size)
    crescent = soft_step(disc + 0.07, 0.05) * np.clip(x * side * 2, 0, 1) * np.float32(rng.uniform(0, 0.35))
    picture = paint(picture, np.float32([0.80, 0.56, 0.34]), crescent)  # atrophy beside some discs
    grain = (1 + 0.035 * smooth_noise(rng, size, 20))[..., None]
    rim = np.float32([0.86, 0.53, 0.29]) * np.float32(rng.normal(1, 0.03)) * grain
    picture = paint(picture, rim, soft_step(disc, 0.025))
    hollow = np.float32([0.97, 0.80, 0.57]) * np.float32(rng.normal(1, 0.025)) * grain
    deep = (1 + 0.10 * soft_step(cup - 0.06, 0.08))[..., None]
    return paint(picture, hollow * deep, soft_step(cup, 0.03))
