"""Drawing branching vessels: headings are integrated to curves, which are drawn with antialiasing."""

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw

from ttdg.data.synthetic.fields import Field, Random

Curves = Float[np.ndarray, "n steps 2"]
Course = Float[np.ndarray, "n steps"]  # a value at each step of each curve
PerCurve = Float[np.ndarray, "n"]

STEPS = 28
OVERSAMPLING = 3


def draw_vessels(rng: Random, size: int, origin: Float[np.ndarray, "2"], width: float) -> Field:
    """Return the vessel coverage of each pixel, 0 to 1. Vessels leave `origin` up and down, and branch."""
    angles, bends = _arcades(rng)
    trunks, headings = _walk(rng, origin + rng.normal(0, 0.03, (len(angles), 2)), angles, bends, length=1.9)
    widths = width * np.linspace(1, 0.55, STEPS) * rng.uniform(0.55, 1.1, (len(trunks), 1))
    twigs, twig_widths = _branches(rng, trunks, headings, widths)
    return _rendered(np.concatenate([trunks, twigs]), np.concatenate([widths, twig_widths]), size)


def _arcades(rng: Random) -> tuple[PerCurve, PerCurve]:
    """Return the headings at which the trunks leave the disc, and the total turn of each."""
    down = np.array([-1, -1, 1, 1, -1, 1])  # y points down
    right = np.array([1, 1, 1, 1, -1, -1])  # four trunks towards the macula, two away from it
    lean = np.array([0.1, 0.6, 0.1, 0.6, 0.8, 0.8]) + rng.normal(0, 0.2, 6)
    turn = np.array([0.8, 0.4, 0.8, 0.4, 0.4, 0.4]) * rng.uniform(0.5, 1.3, 6)
    return np.arctan2(down * np.cos(lean), right * np.sin(lean)), -down * right * turn


def _walk(
    rng: Random, starts: Float[np.ndarray, "n 2"], angles: PerCurve, bends: PerCurve, length: float
) -> tuple[Curves, Course]:
    """Return curves of `length` whose headings turn by `bends` in total plus random sway, and the headings."""
    t = np.linspace(0, 1, STEPS)
    sway = rng.normal(0, 0.22, (len(angles), 3)) @ np.sin(np.outer((2, 4, 7), np.pi * t))
    headings = angles[:, None] + bends[:, None] * t + sway * np.sqrt(t)
    steps = np.stack([np.cos(headings), np.sin(headings)], -1) * (length / STEPS)
    return starts[:, None] + np.cumsum(steps, axis=1) - steps[:, :1], headings


def _branches(
    rng: Random, trunks: Curves, headings: Course, widths: Course, each: int = 3
) -> tuple[Float[np.ndarray, "twigs steps 2"], Float[np.ndarray, "twigs steps"]]:
    """Return `each` thinner branches per trunk, on random sides, and their widths."""
    trunk = np.repeat(np.arange(len(trunks)), each)
    at = rng.integers(4, STEPS - 6, len(trunk))
    hand = rng.choice([-1.0, 1.0], len(trunk))
    angles = headings[trunk, at] + hand * rng.uniform(0.4, 0.9, len(trunk))
    twigs, _ = _walk(rng, trunks[trunk, at], angles, -hand * rng.uniform(0, 0.7, len(trunk)), length=0.9)
    return twigs, 0.6 * widths[trunk, at][:, None] * np.linspace(1, 0.35, STEPS)


def _rendered(curves: Curves, widths: Course, size: int) -> Field:
    scale = size * OVERSAMPLING / 2
    canvas = Image.new("L", (size * OVERSAMPLING,) * 2)
    pen = ImageDraw.Draw(canvas)
    thickness = np.maximum(widths * scale, 1).round().astype(int).tolist()
    for curve, width in zip(((curves + 1) * scale).tolist(), thickness, strict=True):
        for start, end, w in zip(curve[:-1], curve[1:], width[1:], strict=True):
            pen.line((*start, *end), fill=255, width=w)
    return np.asarray(canvas.reduce(OVERSAMPLING), dtype=np.float32) / 255
