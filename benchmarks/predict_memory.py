"""Measure the peak memory of `ttdg predict` over large images of several types, each in a process of its own.

    python benchmarks/predict_memory.py                     # about 81 megapixels, four files of each type
    python benchmarks/predict_memory.py --only jpeg --side 4000

The limit is 1.5 GB for every image under the default pixel limit. Exit status 1 if a type needs more.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 1.5e9  # bytes
MEASURE = """\
import json, resource, sys
from pathlib import Path
import ttdg
from ttdg.newsite import predict

model = ttdg.load("demo")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
outcome = predict(model, Path(sys.argv[1]), Path(sys.argv[2]))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"before": before, "peak": peak, "done": outcome.done, "set_aside": dict(outcome.set_aside)}))
"""


def picture(side: int) -> np.ndarray:
    """Smooth colour with a bright disc, so that it is not taken for an empty frame."""
    axis = np.linspace(-1, 1, side, dtype=np.float32)
    disc = (axis[:, None] ** 2 + axis[None] ** 2 < 0.1).astype(np.uint8) * 90
    ramp = ((axis + 1) * 60).astype(np.uint8)
    image = np.empty((side, side, 3), np.uint8)
    for channel in range(3):
        image[..., channel] = disc + (ramp[:, None] if channel else ramp[None])
    return image


def pillow(suffix: str, mode: str = "RGB", **options: object) -> Callable[[Path, int], None]:
    def write(path: Path, side: int) -> None:
        from PIL import Image

        Image.MAX_IMAGE_PIXELS = None
        Image.fromarray(picture(side)).convert(mode).save(path.with_suffix(suffix), **options)

    return write


def tiff(kind: type, channels: int) -> Callable[[Path, int], None]:
    def write(path: Path, side: int) -> None:
        import tifffile

        values = picture(side)[..., :channels].squeeze().astype(kind)
        tifffile.imwrite(
            path.with_suffix(".tif"), values, photometric="rgb" if channels == 3 else "minisblack"
        )

    return write


def dicom(kind: type, channels: int) -> Callable[[Path, int], None]:
    def write(path: Path, side: int) -> None:
        from pydicom.dataset import FileDataset, FileMetaDataset
        from pydicom.uid import ExplicitVRLittleEndian

        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = (
            "1.2.840.10008.5.1.4.1.1.77.1.5.1",
            "1.2.3",
        )
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
        data.SOPClassUID, data.SOPInstanceUID = meta.MediaStorageSOPClassUID, "1.2.3"
        data.StudyInstanceUID, data.SeriesInstanceUID = "1.2", "1.2.4"
        data.SamplesPerPixel = channels
        data.PhotometricInterpretation = "RGB" if channels == 3 else "MONOCHROME2"
        if channels == 3:
            data.PlanarConfiguration = 0
        data.Rows = data.Columns = side
        data.BitsAllocated = data.BitsStored = 8 * np.dtype(kind).itemsize
        data.HighBit, data.PixelRepresentation = data.BitsStored - 1, 0
        data.PixelData = picture(side)[..., :channels].astype(kind).tobytes()
        data.save_as(path.with_suffix(".dcm"))

    return write


def nifti(path: Path, side: int) -> None:
    """A volume of 512 × 512 slices with as many voxels as twice the image of this side."""
    import nibabel

    axial = picture(512)[..., 0].astype(np.int16)
    values = np.repeat(axial[..., None], 2 * side * side // 512**2, axis=2)
    nibabel.save(nibabel.Nifti1Image(values, np.diag([-1.0, -1.0, 3.0, 1.0])), path.with_suffix(".nii"))


TYPES: dict[str, Callable[[Path, int], None]] = {
    "jpeg": pillow(".jpg"),
    "progressive-jpeg": pillow(".jpg", progressive=True),
    "png": pillow(".png", compress_level=1),
    "rgba-png": pillow(".png", "RGBA", compress_level=1),
    "bmp": pillow(".bmp"),
    "tiff": pillow(".tif"),
    "tiff-16-bit-colour": tiff(np.uint16, 3),
    "tiff-16-bit-grey": tiff(np.uint16, 1),
    "tiff-float-grey": tiff(np.float32, 1),
    "tiff-float-colour": tiff(np.float32, 3),
    "dicom": dicom(np.uint8, 3),
    "dicom-16-bit-grey": dicom(np.uint16, 1),
    "nifti": nifti,
}


def measure(name: str, side: int, count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images"
        images.mkdir()
        writer = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import predict_memory as m; "
        )
        writer += f"from pathlib import Path; m.TYPES[{name!r}](Path({str(images / '0')!r}), {side})"
        subprocess.run([sys.executable, "-c", writer], check=True)
        first = next(images.iterdir())
        for number in range(1, count):
            (images / f"{number}{first.suffix}").hardlink_to(first)
        command = [sys.executable, "-c", MEASURE, str(images), str(Path(folder) / "out")]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=TYPES)
    parser.add_argument("--side", type=int, default=9000)
    parser.add_argument("--count", type=int, default=4)
    arguments = parser.parse_args()
    worst = 0.0
    for name in [arguments.only] if arguments.only else list(TYPES):
        found = measure(name, arguments.side, arguments.count)
        worst = max(worst, found["peak"])
        gigabytes = {key: found[key] / 1e9 for key in ("peak", "before")}
        print(
            f"{name}: peak {gigabytes['peak']:.2f} GB, {gigabytes['before']:.2f} GB before, "
            f"{found['done']} segmented, {len(found['set_aside'])} set aside",
            flush=True,
        )
    sys.exit(int(worst > LIMIT))


if __name__ == "__main__":
    main()
