"""Drawing the optic nerve head: retina, disc, cup inside the disc, and vessels across them."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import ndimage

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
from ttdg.data.synthetic.vessels import draw_vessels

MeanSpread = tuple[float, float]


@dataclass(frozen=True)
class Eyes:
    """The population of a hospital: mean and spread of the anatomy."""

    disc: MeanSpread = (0.36, 0.03)  # radius; the image is 2 wide
    cup: MeanSpread = (0.52, 0.07)  # ratio of the cup's radius to the disc's


@dataclass(frozen=True)
class _Patient:
    """The properties that both eyes of a patient share."""

    disc: float
    cup: float
    pigment: float
    vessel: float


def _patient(rng: Random, eyes: Eyes) -> _Patient:
    return _Patient(
        disc=float(np.clip(rng.normal(*eyes.disc), 0.24, 0.5)),
        cup=float(np.clip(rng.normal(*eyes.cup), 0.32, 0.76)),
        pigment=float(rng.normal()),
        vessel=float(rng.uniform(0.036, 0.05)),
    )


def draw_fundus(eyes: Eyes, patient: Random, rng: Random, size: int) -> tuple[Picture, Labels]:
    """Return the light from a right eye, with the macula on the right, and labels: 0 background, 1 rim, 2 cup."""
    person = _patient(patient, eyes)
    centre = rng.normal(0, 0.07, 2)
    disc = _depth(rng, size, centre, person.disc, tall=1.08)
    nudge = np.array([0.1, 0]) + rng.normal(0, 0.05, 2)
    cup = _depth(rng, size, centre + nudge * person.disc, person.disc * person.cup, tall=1.04)
    cup = np.minimum(cup, disc - 0.1 * person.disc)  # leaves a rim all around the cup

    picture = _nerve_head(rng, _retina(rng, size, person.pigment, disc), disc, cup)
    vessels = draw_vessels(rng, size, centre - np.array([0.1 * person.disc, 0]), person.vessel)
    vessels = vessels * (1 - 0.3 * soft_step(cup, 0.1))  # vessels fade where they enter the cup
    picture = picture * (1 - vessels[..., None] * rgb(0.27, 0.55, 0.50))
    inside = ndimage.binary_erosion(
        disc > 0
    )  # keeps a rim in small images, where it may be thinner than a pixel
    return picture, (disc > 0).astype(np.uint8) + ((cup > 0) & inside)


def _depth(rng: Random, size: int, centre: Float[np.ndarray, "2"], radius: float, tall: float) -> Field:
    """Return the signed distance of each pixel to an irregular ellipse; positive inside."""
    x, y = pixel_grid(size)
    u, v = x - float(centre[0]), y - float(centre[1])
    tilt, stretch = rng.normal(0, 0.25), math.sqrt(tall * rng.normal(1, 0.04))
    c, s = math.cos(tilt), math.sin(tilt)
    u, v = (u * c + v * s) * stretch, (v * c - u * s) / stretch
    return radius - np.hypot(u, v) / closed_curve(rng, np.arctan2(v, u), range(2, 5), wobble=0.08)


def _retina(rng: Random, size: int, pigment: float, disc: Field) -> Picture:
    """Draw an orange, mottled retina with streaks, darker near the macula and brighter around the disc."""
    x, y = pixel_grid(size)
    coarse, middle, fine = (smooth_noise(rng, size, knots) for knots in (4, 14, 48))
    streaks = np.abs(smooth_noise(rng, size, 7, across=12))
    macula = np.exp(-((x - 1.15) ** 2 + y**2) / 0.5)
    glow = np.exp(np.minimum(disc, 0) / 0.16)
    light = 1 + 0.05 * coarse + 0.04 * middle + 0.02 * fine - 0.06 * streaks - 0.22 * macula + 0.16 * glow
    base = rgb(0.66, 0.35, 0.16) * rgb(1, 1 - 0.09 * pigment, 1 - 0.14 * pigment)
    warmth = rgb(0.02, 0.05, 0.06) * smooth_noise(rng, size, 3)[..., None]
    return light[..., None] * base * (1 + warmth)


def _nerve_head(rng: Random, picture: Picture, disc: Field, cup: Field) -> Picture:
    """Draw a pink-yellow disc, sometimes with a pale crescent, and a cup that is brighter inside."""
    size = len(disc)
    x, _ = pixel_grid(size)
    side = np.clip(2 * x, 0, 1) * float(rng.uniform(0, 0.35))
    picture = paint(picture, rgb(0.80, 0.56, 0.34), soft_step(disc + 0.07, 0.05) * side)
    grain = (1 + 0.035 * smooth_noise(rng, size, 20))[..., None]
    rim = rgb(0.83, 0.50, 0.26) * float(rng.normal(1, 0.03))
    picture = paint(picture, rim * grain, soft_step(disc, 0.025))
    hollow = rgb(0.95, 0.74, 0.48) * float(rng.normal(1, 0.025))
    deep = (1 + 0.1 * soft_step(cup - 0.06, 0.08))[..., None]
    return paint(picture, hollow * grain * deep, soft_step(cup, 0.03))
