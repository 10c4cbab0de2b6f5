"""Drawing a mask over its image: tinted structures with a solid outline, and a legend below."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

COLOURS = np.array(
    [(0, 0, 0), (64, 196, 255), (255, 196, 0), (255, 82, 127), (105, 240, 174), (179, 136, 255)], np.uint8
)  # by label; labels beyond the last colour start again at the second
ROWS = 64  # of an overlay that are mixed at once


def draw_overlay(
    image: UInt8[np.ndarray, "h w 3"], labels: UInt8[np.ndarray, "h w"], opacity: float = 0.3
) -> UInt8[np.ndarray, "h w 3"]:
    """Return a copy of the image in which labels above 0 are tinted and outlined."""
    outline, drawn = mask_outline(labels), np.empty_like(image)
    for start in range(0, len(labels), ROWS):
        part = slice(start, start + ROWS)
        alpha = np.where(outline[part], 1.0, np.where(labels[part] > 0, opacity, 0.0))[..., None]
        drawn[part] = np.round(image[part] * (1 - alpha) + COLOURS[_colour(labels[part])] * alpha)
    return drawn


def add_legend(
    image: UInt8[np.ndarray, "h w 3"], labels: Sequence[str]
) -> UInt8[np.ndarray, "height width 3"]:
    """Return the image with a strip below that names the colour of every label but the background.

    The strip is as high as its text. It makes the picture wider only if the picture is narrower than the text.
    """
    size = max(10, image.shape[0] // 40)
    font = ImageFont.load_default(size)
    gap, x, places = size // 2, size // 2, []
    for number, label in enumerate(labels[1:], 1):
        places.append((number, label, x))
        x += size + gap + int(font.getlength(label)) + gap
    height, width = image.shape[0], max(image.shape[1], x)
    canvas = Image.new("RGB", (width, height + 2 * size))
    canvas.paste(Image.fromarray(image))
    draw = ImageDraw.Draw(canvas)
    for number, label, left in places:
        colour = tuple(int(value) for value in COLOURS[_colour(np.array(number, np.uint8))])
        draw.rectangle((left, height + gap, left + size - 1, height + gap + size - 1), fill=colour)
        draw.text((left + size + gap, height + size), label, fill="white", font=font, anchor="lm")
    return np.asarray(canvas)


def mask_outline(labels: UInt8[np.ndarray, "h w"]) -> np.ndarray:
    """Return True for structure pixels near another label. The outline is 1/200 of the shorter side wide."""
    width = max(1, min(labels.shape) // 200)
    edge = np.zeros(labels.shape, bool)
    for axis in (0, 1):
        for shift in (-width, width):
            edge |= labels != _shifted(labels, shift, axis)
    return edge & (labels > 0)


def _colour(labels: UInt8[np.ndarray, "..."]) -> np.ndarray:
    """Return the row of `COLOURS` of each label."""
    return np.where(labels > 0, (labels - 1) % (len(COLOURS) - 1) + 1, 0)


def _shifted(labels: np.ndarray, shift: int, axis: int) -> np.ndarray:
    """Shift as `np.roll` does, but repeat the border instead of wrapping around."""
    index = np.clip(np.arange(labels.shape[axis]) - shift, 0, labels.shape[axis] - 1)
    return np.take(labels, index, axis)
