"""Writing the synthetic hospitals as a benchmark folder."""

import csv
import re
from collections.abc import Callable
from importlib import resources
from itertools import product
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ttdg.data.benchmark import Benchmark, load_benchmark
from ttdg.data.synthetic.cases import SITES, VARIANTS, VOLUMES, check_drawable, draw_case, patient_of
from ttdg.data.synthetic.prostate import SCANNERS, draw_volume
from ttdg.errors import UserError
from ttdg.files import atomic_folder, write_text

SIZE = re.compile(r"^size: (\d+)$", re.MULTILINE)


def write_benchmark(
    out: Path,
    variant: str,
    count: int = 120,
    size: int = 128,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Write all five hospitals to the folder `out`, atomically, and return it.

    An existing folder is replaced only if it is empty or was written by this function.

    Args:
        out: Folder to write.
        variant: `fundus`, `polyp`, `prostate`, or `shapes` for classification.
        count: Number of images of each site, or of volumes of the variant `prostate`.
        size: Side of the images in pixels, and of the network's input.
        seed: Seed of all random numbers.
        progress: Called after each image with the number of written images.
    """
    check_drawable(variant, SITES[0], count, size)
    if not _replaceable(out):
        raise UserError(f"{out} holds other files; choose a new folder for the synthetic hospitals")
    benchmark, description = load_benchmark(f"synthetic-{variant}"), _description(variant, size)
    with atomic_folder(out) as folder:
        write_text(folder / "benchmark.yaml", description)
        for done, (site, case) in enumerate(product(SITES, range(count)), start=1):
            if variant == VOLUMES:
                _save_volume(folder / site, case, size, seed, benchmark)
            else:
                image, labels = draw_case(variant, site, case, size, seed)
                drawn = {"images": image, "masks": benchmark.decode(labels)}
                if benchmark.task == "classification":
                    drawn = {benchmark.labels[labels[0, 0]]: image}
                for part, pixels in drawn.items():
                    _save(folder / site / part, _name(site, case), pixels)
            if progress:
                progress(done)
        # Each volume is a patient, and so is each image of a class.
        for site in SITES if variant != VOLUMES and benchmark.task == "segmentation" else ():
            _write_table(folder / site, count)
    return out


def _replaceable(out: Path) -> bool:
    if not out.exists():
        return True
    if not out.is_dir():
        return False
    description = out / "benchmark.yaml"
    if not description.is_file():
        return not any(out.iterdir())
    text = description.read_text(encoding="utf-8")
    size = SIZE.search(text)
    return size is not None and text in (_description(variant, int(size[1])) for variant in VARIANTS)


def _description(variant: str, size: int) -> str:
    """Return the text of the built-in benchmark file with the size of the drawn images as network input."""
    file = resources.files("ttdg.data") / "benchmarks" / f"synthetic-{variant}.yaml"
    return SIZE.sub(f"size: {size}", file.read_text(encoding="utf-8"))


def _save(folder: Path, name: str, pixels: UInt8[np.ndarray, "h w *c"]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(folder / f"{name}.png")


def _save_volume(site: Path, case: int, size: int, seed: int, benchmark: Benchmark) -> None:
    """Write a volume and its mask as NIfTI files, stored along the axes of the scanner."""
    import nibabel
    from nibabel import orientations

    drawn = draw_volume(site.name, case, size, seed)
    z, y, x = drawn.spacing
    affine = np.diag(
        [-x, -y, z, 1.0]
    )  # voxel axes to the left, back and head; the world of NIfTI is right, front, head
    turn = orientations.ornt_transform(
        orientations.io_orientation(affine), orientations.axcodes2ornt(tuple(SCANNERS[site.name].axes))
    )
    for part, values in (
        ("images", np.rint(drawn.values).astype(np.int16)),
        ("masks", benchmark.greys[drawn.labels]),
    ):
        (site / part).mkdir(parents=True, exist_ok=True)
        image = nibabel.Nifti1Image(values.transpose(2, 1, 0), affine).as_reoriented(turn)
        nibabel.save(image, site / part / f"{_name(site.name, case)}.nii.gz")


def _write_table(folder: Path, count: int) -> None:
    site = folder.name
    with (folder / "cases.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("case", "patient"))
        table.writerows((_name(site, case), f"{site}-p{patient_of(case):04d}") for case in range(count))


def _name(site: str, case: int) -> str:
    return f"{site}-{case:04d}"
