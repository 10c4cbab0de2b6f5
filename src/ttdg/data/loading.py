"""From files to tensors: all cases at once, or batch by batch in bounded memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from ttdg.data.benchmark import Benchmark
from ttdg.data.readers import read_image, read_mask
from ttdg.data.schema import Normalisation
from ttdg.data.sites import Case
from ttdg.data.threads import ordered_map
from ttdg.data.transforms import normalise
from ttdg.errors import UserError
from ttdg.types import Batch


@dataclass(frozen=True)
class Arrays:
    """Cases at the network's size, as bytes: images as they were read, masks as labels."""

    images: UInt8[Tensor, "n 3 s s"]
    masks: UInt8[Tensor, "n s s"] | None
    cases: tuple[str, ...]


@dataclass(frozen=True)
class Loaded:
    """A batch, the cases it was read from, and the (height, width) of their images' files."""

    batch: Batch
    cases: tuple[Case, ...]
    sizes: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Picture:
    """One case at the network's size, and the (height, width) it had."""

    image: UInt8[np.ndarray, "3 s s"]
    labels: UInt8[np.ndarray, "s s"] | None
    size: tuple[int, int]


def load_arrays(
    cases: Sequence[Case],
    benchmark: Benchmark,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Arrays:
    """All cases in memory; `progress` is told after each how many are done."""
    n, s = len(cases), benchmark.size
    images = np.empty((n, 3, s, s), np.uint8)
    masks = np.empty((n, s, s), np.uint8) if have_masks(cases) else None

    def fill(row: int) -> None:
        picture = read_case(cases[row], benchmark)
        images[row] = picture.image
        if masks is not None and picture.labels is not None:
            masks[row] = picture.labels

    for row, filled in ordered_map(fill, range(n), workers):
        filled.result()
        if progress is not None:
            progress(row + 1)
    names = tuple(case.name for case in cases)
    return Arrays(torch.from_numpy(images), None if masks is None else torch.from_numpy(masks), names)


def stream(
    cases: Sequence[Case],
    benchmark: Benchmark,
    batch_size: int,
    workers: int | None = None,
    on_error: Callable[[Case, UserError], None] | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[Loaded]:
    """Batches in the order of `cases`, read ahead by threads but never more than two batches ahead.

    With `on_error`, a case that cannot be read is handed to it and left out, and batches stay full.
    """
    have_masks(cases)
    ready: list[tuple[Case, Picture]] = []
    for case, future in ordered_map(lambda case: read_case(case, benchmark), cases, workers, 2 * batch_size):
        try:
            ready.append((case, future.result()))
        except UserError as error:
            if on_error is None:
                raise
            on_error(case, error)
        if len(ready) == batch_size:
            yield _loaded(ready, benchmark.normalisation, device)
            ready = []
    if ready:
        yield _loaded(ready, benchmark.normalisation, device)


def to_batch(arrays: Arrays, how: Normalisation, device: torch.device | str = "cpu") -> Batch:
    """What a network takes. Bytes travel to the device, floats are made there."""
    images = normalise(arrays.images.to(device).float().div_(255), how)
    return Batch(images, None if arrays.masks is None else arrays.masks.to(device).long(), arrays.cases)


def read_case(case: Case, benchmark: Benchmark) -> Picture:
    """The image is brought to a square, each side scaled by itself, and its mask with it."""
    image, labels = read_pair(case, benchmark)
    size, square = image.shape[:2], (benchmark.size, benchmark.size)
    if size != square:
        image = np.asarray(Image.fromarray(image).resize(square, Image.Resampling.BILINEAR))
        if labels is not None:
            labels = np.asarray(Image.fromarray(labels).resize(square, Image.Resampling.NEAREST))
    return Picture(np.ascontiguousarray(image.transpose(2, 0, 1)), labels, size)


def read_pair(
    case: Case, benchmark: Benchmark
) -> tuple[UInt8[np.ndarray, "h w 3"], UInt8[np.ndarray, "h w"] | None]:
    """Image and labels as large as their files."""
    image = read_image(case.image)
    if case.mask is None:
        return image, None
    return image, labels_of(read_mask(case.mask), image, case, benchmark)


def labels_of(
    mask: UInt8[np.ndarray, "mask_h mask_w"],
    image: UInt8[np.ndarray, "h w 3"],
    case: Case,
    benchmark: Benchmark,
) -> UInt8[np.ndarray, "h w"]:
    """The raw mask in the benchmark's labels; `image` is the one it must cover."""
    if mask.shape != image.shape[:2]:
        (h, w), (height, width, _) = mask.shape, image.shape
        raise UserError(
            f"{case.mask} is {w} × {h} pixels but its image {case.image.name}, upright, {width} × {height}; "
            "draw the mask on this very image, or scale one to the other"
        )
    try:
        return benchmark.encode(mask)
    except UserError as error:
        raise UserError(f"{case.mask}: {error}") from None


def have_masks(cases: Sequence[Case]) -> bool:
    """Whether all do. Some alone are an error, since a batch has masks or has not."""
    without = [case for case in cases if case.mask is None]
    if without and len(without) < len(cases):
        raise UserError(f"{without[0].image} has no mask while others do; add it, or take the image out")
    return not without


def _loaded(ready: Sequence[tuple[Case, Picture]], how: Normalisation, device: torch.device | str) -> Loaded:
    cases, pictures = zip(*ready, strict=True)
    labels = [picture.labels for picture in pictures if picture.labels is not None]
    arrays = Arrays(
        torch.from_numpy(np.stack([picture.image for picture in pictures])),
        torch.from_numpy(np.stack(labels)) if labels else None,
        tuple(case.name for case in cases),
    )
    return Loaded(to_batch(arrays, how, device), cases, tuple(picture.size for picture in pictures))
