"""Drawings of single shapes, for classification: a ring, a square, a triangle or a cross, the same at every site.

Sites differ in how they draw: filled or in outline, plain or rough, on a light or a dark ground.
"""

import math
from dataclasses import dataclass

import numpy as np

from ttdg.data.synthetic.fields import (
    Field,
    Labels,
    Picture,
    Random,
    paint,
    pixel_grid,
    rgb,
    smooth_noise,
    soft_step,
)

CLASSES = ("ring", "square", "triangle", "cross")


@dataclass(frozen=True)
class Drawing:
    """How a site draws. Levels run from 0 (black) to 1 (white), lengths from the centre (0) to the edge (1)."""

    ground: float = 0.7  # level of the background
    ink: float = 0.3  # level of the shape
    colourful: float = 0.2  # how much the three channels of both differ from these levels
    filled: float = 1.0  # opacity of the inside; the outline is always opaque
    outline: float = 0.04  # half its width
    texture: float = 0.08  # of the background
    rough: float = 0.03  # of the outline


def draw_shape(drawing: Drawing, patient: Random, rng: Random, size: int) -> tuple[Picture, Labels]:
    """Return a picture of one shape, and a label map that holds its class everywhere."""
    kind = int(rng.integers(len(CLASSES)))
    x, y = pixel_grid(size)
    turn, radius = rng.uniform(0, 2 * math.pi), rng.uniform(0.4, 0.65)
    left, top = rng.uniform(-0.25, 0.25, 2).tolist()
    u = math.cos(turn) * (x - left) + math.sin(turn) * (y - top)
    v = math.cos(turn) * (y - top) - math.sin(turn) * (x - left)
    inside = _depth(CLASSES[kind], u / radius, v / radius) * radius
    inside = inside + drawing.rough * smooth_noise(rng, size, 12)
    colours = drawing.colourful * rng.uniform(-0.5, 0.5, (2, 3)).astype(np.float32)
    ground, ink = rgb(*[drawing.ground] * 3) + colours[0], rgb(*[drawing.ink] * 3) + colours[1]
    picture = np.broadcast_to(ground, (size, size, 3)) * (
        1 + drawing.texture * (smooth_noise(rng, size, 3) + 0.5 * smooth_noise(rng, size, 14))
    )[..., None].astype(np.float32)
    edge = 2 / size
    picture = paint(picture, ink, drawing.filled * soft_step(inside, edge))
    line = soft_step(drawing.outline - np.abs(inside), edge)
    labels = np.full((size, size), kind, np.uint8)
    return np.clip(paint(picture, 0.6 * ink, line), 0, 1).astype(np.float32), labels


def _depth(kind: str, u: Field, v: Field) -> Field:
    """Return the distance to the outline of a shape of radius 1, positive inside; outside it may be an estimate."""
    if kind == "ring":
        return 0.25 - np.abs(np.hypot(u, v) - 0.75)
    if kind == "square":
        return 0.75 - np.maximum(np.abs(u), np.abs(v))
    if kind == "triangle":
        angles = (math.pi / 2 + 2 * math.pi * k / 3 for k in range(3))
        return 0.5 - np.maximum.reduce([math.cos(a) * u + math.sin(a) * v for a in angles])
    arm = np.minimum(np.abs(u), np.abs(v))
    return np.minimum(0.25 - arm, 0.9 - np.maximum(np.abs(u), np.abs(v)))
