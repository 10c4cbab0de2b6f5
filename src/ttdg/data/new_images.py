"""Unlabelled images of a new site, batch by batch. Each file is opened and decoded once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image

from ttdg.data.benchmark import Benchmark
from ttdg.data.loading import Arrays, read_batches, to_batch, to_network_size
from ttdg.data.readers import read_image_and_digest
from ttdg.data.sites import Case
from ttdg.errors import UserError

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


@dataclass(frozen=True)
class NewBatch:
    """Decoded image files, and the normalised input of the network on its device."""

    files: tuple[NewImage, ...]
    images: Float[torch.Tensor, "b 3 s s"]


def read_new_images(
    cases: Sequence[Case],
    benchmark: Benchmark,
    batch_size: int,
    device: torch.device,
    *,
    pictures: bool,
    workers: int | None = None,
    on_error: Callable[[Case, UserError], None],
) -> Iterator[NewBatch]:
    """Yield batches of images in the order of `cases`. Threads read at most two batches ahead.

    Args:
        cases: The image files.
        benchmark: Size and normalisation of the network's input.
        batch_size: Images per batch; unreadable files do not count.
        device: Device of the network's input.
        pictures: Also keep a picture of each image for its overlay.
        workers: Number of threads that read images; None is one per core.
        on_error: Called with each unreadable file and the reason.
    """
    for items in read_batches(
        cases, lambda case: _read(case, benchmark, pictures), batch_size, workers, on_error
    ):
        files = tuple(image for _, image in items)
        inputs = torch.from_numpy(np.stack([image.network_input for image in files]))
        arrays = Arrays(inputs, None, tuple(image.name for image in files))
        yield NewBatch(files, to_batch(arrays, benchmark.normalisation, device).images)


def _read(case: Case, benchmark: Benchmark, picture: bool) -> NewImage:
    """Read an image for the network and, if `picture` is set, for its overlay."""
    image, digest = read_image_and_digest(case.image)
    return NewImage(
        name=case.name,
        file=case.image.name,
        sha256=digest,
        size=image.shape[:2],
        network_input=to_network_size(image, benchmark.size),
        picture=_bounded(image) if picture else None,
    )


def _bounded(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "height width 3"]:
    """Scale an image down to `LARGEST_PICTURE`, so that memory does not depend on the size of the files."""
    scale = LARGEST_PICTURE / max(image.shape[:2])
    if scale >= 1:
        return image
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
