"""Writing one case of a download into a benchmark folder: an image with its mask, a volume, or a class image."""

import gzip
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ttdg.data.benchmark import Benchmark
from ttdg.data.downloads.description import DatasetDescription
from ttdg.data.downloads.masks import fitted, mask_values, painted
from ttdg.data.downloads.plan import FoundCase
from ttdg.data.raster import DAMAGE
from ttdg.data.readers import read_image, readable
from ttdg.data.volumes.formats import read_stored
from ttdg.data.volumes.nifti import SUFFIXES, is_volume
from ttdg.errors import UserError
from ttdg.files import atomic_file

VOLUME = SUFFIXES[0]  # ending of written volumes
APART = 0.1  # largest difference of two affines of the same volume, in millimetres


def target_paths(case: FoundCase, description: DatasetDescription, out: Path) -> tuple[Path, ...]:
    """Return the files that a case becomes: image and mask, or the image alone in class folders."""
    ending = case.image.suffix.lower()
    if description.benchmark is None:
        return (out / case.site / str(case.label) / f"{case.name}{ending}",)
    if is_volume(case.image) or not readable(case.image):
        return tuple(out / case.site / part / f"{case.name}{VOLUME}" for part in ("images", "masks"))
    image = ".png" if description.crop else ending
    site = out / case.site
    return site / "images" / f"{case.name}{image}", site / "masks" / f"{case.name}.png"


def convert_case(
    case: FoundCase, description: DatasetDescription, benchmark: Benchmark | None, targets: tuple[Path, ...]
) -> None:
    """Check a case and write its files, each atomically; a problem raises `UserError` and writes nothing."""
    if benchmark is None:
        read_image(case.image)  # refuses damaged files
        _copy(case.image, targets[0])
    elif targets[0].name.endswith(VOLUME):
        _convert_volume(case, benchmark, *targets)
    else:
        _convert_image(case, description, benchmark, *targets)


def _convert_image(
    case: FoundCase, description: DatasetDescription, benchmark: Benchmark, image: Path, mask: Path
) -> None:
    pixels = read_image(case.image)
    height, width = pixels.shape[:2]
    values = [
        (spec, fitted(mask_values(path, spec.channels), (height, width), description.tolerance, path), path)
        for spec, path in case.masks
    ]
    labels = painted(values, benchmark.labels)
    if description.crop is not None:
        if labels[:, width // 2 :].any():
            raise UserError(f"{case.masks[0][1]} marks the right half, which is cut off; check the download")
        labels, pixels = labels[:, : width // 2], pixels[:, : width // 2]
        _save(pixels, image)
    else:
        _copy(case.image, image)
    _save(benchmark.decode(labels), mask)


def _convert_volume(case: FoundCase, benchmark: Benchmark, image: Path, mask: Path) -> None:
    import nibabel

    volume = read_stored(case.image)
    values = [(spec, _turned_values(path, volume, case.image), path) for spec, path in case.masks]
    greys = benchmark.greys[painted(values, benchmark.labels)]
    with _whole(case.image):
        np.asanyarray(volume.dataobj)
    if is_volume(case.image) and case.image.name.endswith(VOLUME):
        _copy(case.image, image)
    else:
        _save_volume(volume, image)
    _save_volume(nibabel.Nifti1Image(greys, volume.affine), mask)


def _turned_values(path: Path, volume: Any, image: Path) -> np.ndarray:
    """Return the values of a mask, its axes turned to those of the image; refuse one that lies elsewhere."""
    from nibabel import orientations

    mask = read_stored(path)
    turn = orientations.ornt_transform(
        orientations.io_orientation(mask.affine), orientations.io_orientation(volume.affine)
    )
    with _whole(path):
        turned = mask.as_reoriented(turn)
        values = np.asanyarray(turned.dataobj)
    if turned.shape != volume.shape or not np.allclose(turned.affine, volume.affine, atol=APART):
        raise UserError(
            f"{path} has another shape or position than its image {image.name}; download both again"
        )
    return values


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Refuse a volume whose voxels end too early; they are read after the file was opened."""
    try:
        yield
    except DAMAGE as error:
        raise UserError(f"{path} is truncated or damaged ({error}); download it again") from None


def _save(pixels: UInt8[np.ndarray, "h w *c"], path: Path) -> None:
    with atomic_file(path) as temporary:
        Image.fromarray(np.ascontiguousarray(pixels)).save(temporary)


def _save_volume(volume: Any, path: Path) -> None:
    """Write a NIfTI file, compressed; the same volume gives the same bytes."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(gzip.compress(volume.to_bytes(), mtime=0))


def _copy(source: Path, target: Path) -> None:
    with atomic_file(target) as temporary:
        shutil.copyfile(source, temporary)
