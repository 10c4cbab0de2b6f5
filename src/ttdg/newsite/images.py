"""Reading the images of a new site. Each file is opened and decoded once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image

from ttdg.data.benchmark import Benchmark
from ttdg.data.loading import Arrays, to_batch, to_network_size
from ttdg.data.readers import read_image_and_digest
from ttdg.data.sites import Case

LARGEST_PICTURE = 2048  # pixels; longer side of the pictures that are kept in memory for the overlays


@dataclass(frozen=True)
class NewImage:
    """A decoded image file."""

    name: str  # file name without its suffix
    file: str  # file name
    sha256: str  # digest of the file
    size: tuple[int, int]  # (height, width) of the upright image
    network_input: UInt8[np.ndarray, "3 s s"]
    picture: (
        UInt8[np.ndarray, "h w 3"] | None
    )  # for the overlay, at most `LARGEST_PICTURE`; None without overlays


def read_new_image(case: Case, benchmark: Benchmark, overlay: bool) -> NewImage:
    """Read an image for the network and, if `overlay` is set, for its overlay."""
    image, digest = read_image_and_digest(case.image)
    return NewImage(
        name=case.name,
        file=case.image.name,
        sha256=digest,
        size=image.shape[:2],
        network_input=to_network_size(image, benchmark.size),
        picture=_bounded(image) if overlay else None,
    )


def network_batch(
    images: Sequence[NewImage], benchmark: Benchmark, device: torch.device
) -> Float[torch.Tensor, "b 3 s s"]:
    """Return the normalised input of the network on `device`."""
    inputs = torch.from_numpy(np.stack([image.network_input for image in images]))
    names = tuple(image.name for image in images)
    return to_batch(Arrays(inputs, None, names), benchmark.normalisation, device).images


def _bounded(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "height width 3"]:
    """Scale an image down to `LARGEST_PICTURE`, so that memory does not depend on the size of the files."""
    scale = LARGEST_PICTURE / max(image.shape[:2])
    if scale >= 1:
        return image
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
