"""Branching vessels as soft masks: headings are integrated to curves, curves drawn and smoothed."""

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw

from ttdg.data.synthetic.fields import Field

Curves = Float[np.ndarray, "curves steps 2"]
Widths = Float[np.ndarray, "curves steps"]

STEPS = 28
OVERSAMPLING = 3


def draw_vessels(
    rng: np.random.Generator, size: int, origin: Float[np.ndarray, "2"], side: int, width: float
) -> Field:
    """How much vessel lies over each pixel, 0 to 1: two arcades that leave `origin` up and down and bend to `side`."""
    angles, bends = _arcades(rng, side)
    starts = np.float32(origin) + rng.normal(0, 0.03, (len(angles), 2))
    trunks, headings = _walk(rng, starts, angles, bends, length=1.9)
    thick = width * np.linspace(1, 0.55, STEPS) * rng.uniform(0.55, 1.1, (len(trunks), 1))
    twigs, thin = _branches(rng, trunks, headings, thick)
    return _render(np.concatenate([trunks, twigs]), np.concatenate([thick, thin]), size)


def _arcades(
    rng: np.random.Generator, side: int
) -> tuple[Float[np.ndarray, "curves"], Float[np.ndarray, "curves"]]:
    """Headings of the trunks where they leave the disc, and how far each turns on its way."""
    up = np.array([-1, -1, 1, 1, -1, 1])  # y points down
    away = np.array([side, side, side, side, -side, -side])  # four temporal, two nasal
    lean = np.array([0.1, 0.6, 0.1, 0.6, 0.8, 0.8]) + rng.normal(0, 0.2, 6)
    angles = np.arctan2(up * np.cos(lean), away * np.sin(lean))
    turn = np.array([0.9, 0.5, 0.9, 0.5, 0.5, 0.5]) * rng.uniform(0.5, 1.3, 6)
    return angles, -up * away * -turn


def _walk(
    rng: np.random.Generator,
    starts: Float[np.ndarray, "curves 2"],
    angles: Float[np.ndarray, "curves"],
    bends: Float[np.ndarray, "curves"],
    length: float,
) -> tuple[Curves, Widths]:
    """Curves of `length` whose heading turns by `bends` in all, with a random sway on top."""
    t = np.linspace(0, 1, STEPS)
    sway = rng.normal(0, 0.22, (len(angles), 3)) @ np.sin(np.outer((2, 4, 7), np.pi * t))
    headings = angles[:, None] + bends[:, None] * t + sway * np.sqrt(t)
    steps = np.stack([np.cos(headings), np.sin(headings)], -1) * (length / STEPS)
    return starts[:, None] + np.cumsum(steps, 1) - steps[:, :1], headings


def _branches(
    rng: np.random.Generator, trunks: Curves, headings: Widths, thick: Widths, each: int = 3
) -> tuple[Curves, Widths]:
    """`each` thinner side branches a trunk, leaving it to either hand."""
    trunk = np.repeat(np.arange(len(trunks)), each)
    at = rng.integers(4, STEPS - 6, len(trunk))
    hand = rng.choice([-1, 1], len(trunk))
    angles = headings[trunk, at] + hand * rng.uniform(0.4, 0.9, len(trunk))
    twigs, _ = _walk(rng, trunks[trunk, at], angles, -hand * rng.uniform(0, 0.7, len(trunk)), length=0.9)
    return twigs, 0.6 * thick[trunk, at][:, None] * np.linspace(1, 0.35, STEPS)


def _render(curves: Curves, widths: Widths, size: int) -> Field:
    scale = size * OVERSAMPLING / 2
    canvas = Image.new("L", (size * OVERSAMPLING,) * 2)
    pen = ImageDraw.Draw(canvas)
    points = ((curves + 1) * scale).round(2)
    pixels = np.maximum(widths * scale, 1).round().astype(int)
    for curve, width in zip(points.tolist(), pixels.tolist(), strict=True):
        for (x0, y0), (x1, y1), w in zip(curve, curve[1:], width, strict=False):
            pen.line((x0, y0, x1, y1), fill=255, width=w)
    return np.asarray(canvas.reduce(OVERSAMPLING), dtype=np.float32) / np.float32(255)
