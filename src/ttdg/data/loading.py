"""Loading cases into tensors: all at once, or batch by batch in bounded memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TypeVar

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
from ttdg.data.volumes.files import volume_mask_slice, volume_slice
from ttdg.errors import UserError, suggestion
from ttdg.types import Batch

R = TypeVar("R")


@dataclass(frozen=True)
class Arrays:
    """Cases in bytes at the network's input size: RGB images, and masks as label indices."""

    images: UInt8[Tensor, "n 3 h w"]
    masks: UInt8[Tensor, "n h w"] | None
    cases: tuple[str, ...]  # names


@dataclass(frozen=True)
class Loaded:
    """A batch and the cases it was read from."""

    batch: Batch
    cases: tuple[Case, ...]


def load_arrays(
    cases: Sequence[Case],
    benchmark: Benchmark,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Arrays:
    """Load all cases into memory; call `progress` with the number of loaded cases after each."""
    n, s = len(cases), benchmark.size
    images = np.empty((n, 3, s, s), np.uint8)
    masks = np.empty((n, s, s), np.uint8) if all_have_masks(cases) else None

    def load(row: int) -> None:
        image, labels = read_case(cases[row], benchmark)
        images[row] = image
        if masks is not None and labels is not None:
            masks[row] = labels

    for row, future in ordered_map(load, range(n), workers):
        future.result()
        if progress is not None:
            progress(row + 1)
    names = tuple(case.name for case in cases)
    return Arrays(torch.from_numpy(images), None if masks is None else torch.from_numpy(masks), names)


def subset(arrays: Arrays, cases: Sequence[Case]) -> Arrays:
    """Return the arrays of some of their cases, in the order of `cases`."""
    row = {name: number for number, name in enumerate(arrays.cases)}
    rows = [row[case.name] for case in cases]
    masks = None if arrays.masks is None else arrays.masks[rows]
    return Arrays(arrays.images[rows], masks, tuple(case.name for case in cases))


def stream(
    cases: Sequence[Case],
    benchmark: Benchmark,
    batch_size: int | Sequence[int],
    workers: int | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[Loaded]:
    """Yield batches in the order of `cases`. Threads read at most two batches ahead.

    `batch_size` is the size of all batches, or the size of each.
    """
    all_have_masks(cases)
    for items in read_batches(cases, lambda case: read_case(case, benchmark), batch_size, workers):
        masks = [labels for _, (_, labels) in items if labels is not None]
        arrays = Arrays(
            torch.from_numpy(np.stack([image for _, (image, _) in items])),
            torch.from_numpy(np.stack(masks)) if masks else None,
            tuple(case.name for case, _ in items),
        )
        yield Loaded(to_batch(arrays, benchmark.normalisation, device), tuple(case for case, _ in items))


def read_batches(
    cases: Sequence[Case],
    read: Callable[[Case], R],
    batch_size: int | Sequence[int],
    workers: int | None = None,
    on_error: Callable[[Case, UserError], None] | None = None,
) -> Iterator[list[tuple[Case, R]]]:
    """Yield batches of cases with the results of `read`, in order. Threads read at most two batches ahead.

    A case that `read` refuses with a `UserError` is passed to `on_error` and left out; the next cases fill
    its batch. Without `on_error` the error is raised.
    """
    batch: list[tuple[Case, R]] = []
    given = [batch_size] if isinstance(batch_size, int) else batch_size
    sizes = chain(given, repeat(max(given)))
    size = next(sizes)
    for case, future in ordered_map(read, cases, workers, ahead=2 * max(given)):
        try:
            batch.append((case, future.result()))
        except UserError as error:
            if on_error is None:
                raise
            on_error(case, error)
        if len(batch) == size:
            yield batch
            batch, size = [], next(sizes)
    if batch:
        yield batch


def to_batch(arrays: Arrays, how: Normalisation, device: torch.device | str = "cpu") -> Batch:
    """Return normalised images and int64 masks on `device`; bytes are transferred and converted there."""
    images = normalise(arrays.images.to(device).float().div_(255), how)
    return Batch(images, None if arrays.masks is None else arrays.masks.to(device).long(), arrays.cases)


def read_case(
    case: Case, benchmark: Benchmark
) -> tuple[UInt8[np.ndarray, "3 s s"], UInt8[np.ndarray, "s s"] | None]:
    """Return the image and the labels of a case at the network's input size."""
    image, mask = case_image(case, benchmark.normalisation), case_mask(case)
    square = (benchmark.size, benchmark.size)
    if case.label is not None or benchmark.task == "classification":
        label = class_index(case, benchmark)
        return to_network_size(image, benchmark.size), None if label is None else np.full(
            square, label, np.uint8
        )
    labels = None if mask is None else labels_of(mask, image, case, benchmark)
    if labels is not None and labels.shape != square:
        labels = np.asarray(Image.fromarray(labels).resize(square, Image.Resampling.NEAREST))
    return to_network_size(image, benchmark.size), labels


def case_image(case: Case, how: Normalisation) -> UInt8[np.ndarray, "h w 3"]:
    """Return the image of a case: an image file, or a slice of a volume."""
    if case.slice is not None:
        return volume_slice(case.image, case.slice, clip=how == "clipped-zscore")
    if how == "clipped-zscore":
        raise UserError(
            f"{case.image} is no volume, whose intensities `clipped-zscore` would limit; use the normalisation zscore"
        )
    return read_image(case.image)


def class_index(case: Case, benchmark: Benchmark) -> int | None:
    """Return the index of the class of a case, or None if the case has no class."""
    if benchmark.task != "classification":
        raise UserError(
            f"{case.image} is in the folder of a class, but the benchmark {benchmark.name!r} needs masks; put images "
            "into SITE/images and masks into SITE/masks, or choose a benchmark with `task: classification`"
        )
    if case.label is None:
        return None
    if case.label not in benchmark.labels:
        raise UserError(
            f"{case.image} is in the folder {case.label!r}, which is no class of the benchmark "
            f"{benchmark.name!r}{suggestion(case.label, benchmark.labels)}; rename or remove the folder"
        )
    return benchmark.labels.index(case.label)


def case_mask(case: Case) -> UInt8[np.ndarray, "h w"] | None:
    """Return the raw values of the mask of a case, if it has one."""
    if case.mask is None:
        return None
    return (
        read_mask(case.mask) if case.slice is None else volume_mask_slice(case.mask, case.slice, case.image)
    )


def to_network_size(image: UInt8[np.ndarray, "h w 3"], size: int) -> UInt8[np.ndarray, "3 size size"]:
    """Resize an image to a square with its channels first. The aspect ratio is not kept."""
    if image.shape[:2] != (size, size):
        image = np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
    return np.ascontiguousarray(image.transpose(2, 0, 1))


def labels_of(
    mask: UInt8[np.ndarray, "mask_h mask_w"],
    image: UInt8[np.ndarray, "h w 3"],
    case: Case,
    benchmark: Benchmark,
) -> UInt8[np.ndarray, "h w"]:
    """Return the label indices of a raw mask, which must have the size of `image`."""
    if mask.shape != image.shape[:2]:
        (h, w), (height, width, _) = mask.shape, image.shape
        raise UserError(
            f"{case.mask} is {w} × {h} pixels but its image {case.image.name}, turned upright, is "
            f"{width} × {height}; draw the mask on this image, or resize one of them"
        )
    try:
        return benchmark.encode(mask)
    except UserError as error:
        raise UserError(f"{case.mask}: {error}") from None


def all_have_masks(cases: Sequence[Case]) -> bool:
    """Return True if every case has a mask or a class, False if none has; a mixture raises."""
    without = [case for case in cases if not case.labelled]
    if without and len(without) < len(cases):
        raise UserError(f"{without[0].image} has no mask while others do; add it, or remove the image")
    return not without
