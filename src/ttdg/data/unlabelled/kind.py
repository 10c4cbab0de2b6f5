"""Recognising frames that show nothing a network was trained for: one grey value, or noise.

Such a frame is valid as a file. Its statistics, however, would spoil the answers to the images that are adapted to
together with it.
"""

import numpy as np
from jaxtyping import UInt8

LEAST_DEVIATION = 2.0  # grey values of 255; photographs of tissue have more than 10
LEAST_CORRELATION = 0.25  # between pixels at a distance of 1/32 of the side; photographs have more than 0.6
DARK = 16.0  # mean grey value below which a constant frame is called black


def unusual_kind(image: UInt8[np.ndarray, "3 s s"]) -> str:
    """Return why an image at the network's size is no picture of a structure, or an empty text if it may be one.

    A frame is constant if its grey values hardly differ. It is noise if a pixel says nothing about those at a distance
    of 1/32 of the side.
    """
    values = image.astype(np.float32)
    centred = values - values.mean((1, 2), keepdims=True)
    if np.sqrt(np.square(centred).mean()) < LEAST_DEVIATION:
        return "the frame is black" if values.mean() < DARK else "the frame has one colour"
    distance = max(2, image.shape[1] // 32)
    if (
        max(_correlation(centred, distance), _correlation(centred.transpose(0, 2, 1), distance))
        < LEAST_CORRELATION
    ):
        return "the frame is noise"
    return ""


def _correlation(centred: np.ndarray, distance: int) -> float:
    """Return the correlation of pixels with those `distance` rows below."""
    above, below = centred[:, :-distance], centred[:, distance:]
    scale = float(np.sqrt(np.square(above).mean() * np.square(below).mean()))
    return float((above * below).mean()) / scale if scale > 0 else 1.0
