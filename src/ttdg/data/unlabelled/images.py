"""Unlabelled images of a new site, batch by batch. Each file is opened and decoded once."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image

from ttdg.data.benchmark import Benchmark
from ttdg.data.loading import Arrays, to_batch, to_network_size
from ttdg.data.raster import pixel_limit, read_reduced_image
from ttdg.data.threads import ordered_map
from ttdg.data.unlabelled.frames import DIGEST, InputFile, read_stack_frame
from ttdg.data.unlabelled.kind import unusual_kind
from ttdg.errors import UserError

LARGEST_PICTURE = 2048  # pixels; longer side of the pictures that are kept in memory for the overlays
FOREIGN = "another kind of image than those of the source"
DECODED_SIDE = 2048  # pixels; larger images are decoded at a smaller scale with sides of at least this length


@dataclass(frozen=True)
class NewImage:
    """A decoded image: a file, or a frame of a file."""

    input: InputFile
    sha256: str  # digest of the file
    size: tuple[int, int]  # (height, width) of the upright image
    network_input: UInt8[np.ndarray, "3 s s"]
    picture: (
        UInt8[np.ndarray, "h w 3"] | None
    )  # for the overlay, at most `LARGEST_PICTURE`; None without overlays
    unusual: str  # why the image is no picture of a structure; empty for all others

    @property
    def file(self) -> str:
        """The name of the image, as in `InputFile`."""
        return self.input.file


@dataclass(frozen=True)
class Refused:
    """A file that cannot be read, with the reason. The reason names the file relative to the input folder."""

    file: str
    sha256: str  # empty if the file could not be opened
    reason: str


@dataclass(frozen=True)
class NewBatch:
    """Decoded image files, and the normalised input of the network on its device."""

    files: tuple[NewImage, ...]
    images: Float[torch.Tensor, "b 3 s s"]

    @property
    def unusual(self) -> str:
        """Why the only image of the batch is no picture of a structure; empty for all other batches."""
        return self.files[0].unusual


def read_new_images(
    groups: Sequence[Sequence[InputFile]],
    benchmark: Benchmark,
    batch_size: int,
    device: torch.device,
    *,
    pictures: bool,
    most_pixels: int,
    workers: int | None = None,
    foreign: Callable[[NewImage], bool] = lambda image: False,
    on_error: Callable[[Refused], None],
) -> Iterator[NewBatch]:
    """Yield batches of images in order. Threads read at most two batches ahead.

    An image that is constant, noise or `foreign` forms a batch of its own. No batch has images of two groups.

    Args:
        groups: The image files, in groups.
        benchmark: Size and normalisation of the network's input.
        batch_size: Images per batch; unreadable and unusual files do not count.
        device: Device of the network's input.
        pictures: Also keep a picture of each image for its overlay.
        most_pixels: Images with more pixels are refused.
        workers: Number of threads that read images; None is one per core.
        foreign: Whether an image is not of the source's kind.
        on_error: Called with each unreadable file and the reason.
    """

    def batch_of(images: list[NewImage]) -> NewBatch:
        inputs = torch.from_numpy(np.stack([image.network_input for image in images]))
        arrays = Arrays(inputs, None, tuple(image.file for image in images))
        return NewBatch(tuple(images), to_batch(arrays, benchmark.normalisation, device).images)

    with pixel_limit(most_pixels):
        for group in groups:
            waiting: list[NewImage] = []
            for _, future in ordered_map(
                lambda file: _read(file, benchmark, pictures), group, workers, ahead=2 * batch_size
            ):
                image = future.result()
                if isinstance(image, Refused):
                    on_error(image)
                elif image.unusual or foreign(image):
                    image = image if image.unusual else replace(image, unusual=FOREIGN)
                    yield batch_of([image])
                else:
                    waiting.append(image)
                if len(waiting) == batch_size:
                    yield batch_of(waiting)
                    waiting = []
            if waiting:
                yield batch_of(waiting)


def _read(file: InputFile, benchmark: Benchmark, picture: bool) -> NewImage | Refused:
    """Read an image for the network and, if `picture` is set, for its overlay."""
    digest = ""
    try:
        if file.stack is not None:
            digest = DIGEST.of(file)
            clip = benchmark.normalisation == "clipped-zscore"
            image, size = read_stack_frame(file, file.stack, DECODED_SIDE, clip=clip)
            return _new_image(file, digest, image, size, benchmark, picture)
        with file.path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
            opened.seek(0)
            image, size = read_reduced_image(opened, file.path, DECODED_SIDE)
    except UserError as error:
        return Refused(file.file, digest, file.without_paths(str(error)))
    except OSError as error:
        return Refused(
            file.file, digest, f"cannot open {file.file} ({error.strerror}); check its permissions"
        )
    return _new_image(file, digest, image, size, benchmark, picture)


def _new_image(
    file: InputFile,
    digest: str,
    image: UInt8[np.ndarray, "h w 3"],
    size: tuple[int, int],
    benchmark: Benchmark,
    picture: bool,
) -> NewImage:
    inputs = to_network_size(image, benchmark.size)
    shown = _bounded(image) if picture else None
    return NewImage(file, digest, size, inputs, shown, unusual_kind(inputs))


def _bounded(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "height width 3"]:
    """Scale an image down to `LARGEST_PICTURE`, so that memory does not depend on the size of the files."""
    scale = LARGEST_PICTURE / max(image.shape[:2])
    if scale >= 1:
        return image
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
