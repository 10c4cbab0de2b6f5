"""Drawing a mask over its image: tinted structures with a solid outline."""

import numpy as np
from jaxtyping import UInt8

COLOURS = np.array(
    [(0, 0, 0), (64, 196, 255), (255, 196, 0), (255, 82, 127), (105, 240, 174), (179, 136, 255)], np.uint8
)  # by label; labels beyond the last colour start again at the second


def draw_overlay(
    image: UInt8[np.ndarray, "h w 3"], labels: UInt8[np.ndarray, "h w"], opacity: float = 0.3
) -> UInt8[np.ndarray, "h w 3"]:
    """Return a copy of the image in which labels above 0 are tinted and outlined."""
    colours = COLOURS[np.where(labels > 0, (labels - 1) % (len(COLOURS) - 1) + 1, 0)]
    alpha = np.where(mask_outline(labels), 1.0, np.where(labels > 0, opacity, 0.0))[..., None]
    return np.round(image * (1 - alpha) + colours * alpha).astype(np.uint8)


def mask_outline(labels: UInt8[np.ndarray, "h w"]) -> np.ndarray:
    """Return True for structure pixels near another label. The outline is 1/200 of the shorter side wide."""
    width = max(1, min(labels.shape) // 200)
    edge = np.zeros(labels.shape, bool)
    for axis in (0, 1):
        for shift in (-width, width):
            edge |= labels != _shifted(labels, shift, axis)
    return edge & (labels > 0)


def _shifted(labels: np.ndarray, shift: int, axis: int) -> np.ndarray:
    """Shift as `np.roll` does, but repeat the border instead of wrapping around."""
    index = np.clip(np.arange(labels.shape[axis]) - shift, 0, labels.shape[axis] - 1)
    return np.take(labels, index, axis)
