"""Fuzz every image reader with damaged files, and count what must not happen.

    python benchmarks/fuzz_readers.py --count 10000 --seed 0
    python benchmarks/fuzz_readers.py --count 10000 --seed 0 --kinds dicom nifti --keep findings/

Valid files of every kind are made in memory (the corpus depends on the seed alone). Each is damaged and then read as
`ttdg predict` reads it; `fuzz.py` says how, and what is counted. `--keep` writes each finding to a folder.
"""

import gzip
import io
import random
import sys
from pathlib import Path

import numpy as np

from fuzz import File, damaged, fuzz

KINDS = ("png", "jpeg", "bmp", "tiff", "webp", "nifti", "dicom")
SUFFIX = {"png": ".png", "jpeg": ".jpg", "bmp": ".bmp", "tiff": ".tif", "webp": ".webp", "dicom": ".dcm"}


def corpus(seed: int) -> dict[str, list[File]]:
    """Return valid files by kind."""
    import nibabel
    import tifffile
    from PIL import Image

    rng = np.random.default_rng(seed)
    colour = np.asarray(Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8)).resize((64, 48)))
    grey16 = colour[..., 0].astype(np.uint16) * 16
    found: dict[str, list[File]] = {kind: [] for kind in KINDS}

    def add(kind: str, picture: Image.Image, **options: object) -> None:
        out = io.BytesIO()
        picture.save(out, kind.upper(), **options)
        found[kind].append(File(f"input{SUFFIX[kind]}", out.getvalue()))

    rgb, deep = Image.fromarray(colour), Image.fromarray(grey16)
    for mode in ("RGB", "L", "P", "RGBA", "1"):
        add("png", rgb.convert(mode))
        add("tiff", rgb.convert(mode))
    add("png", deep)
    for options in ({}, {"progressive": True}, {"exif": rgb.getexif(), "quality": 30}):
        add("jpeg", rgb, **options)
    add("bmp", rgb)
    add("bmp", rgb.convert("P"))
    add("webp", rgb)
    add("webp", rgb, lossless=True)
    for compression in ("tiff_lzw", "tiff_deflate", "jpeg", "packbits"):
        add("tiff", rgb, compression=compression)
    for values in (grey16, colour.astype(np.float32), colour.astype(np.uint16)):
        out = io.BytesIO()
        tifffile.imwrite(out, values)
        found["tiff"].append(File("input.tif", out.getvalue()))
    for dtype in (np.uint8, np.int16, np.float32, np.float64):
        for klass in (nibabel.Nifti1Image, nibabel.Nifti2Image):
            volume = klass(rng.integers(0, 100, (7, 6, 5)).astype(dtype), np.diag([-1.0, -1, 3, 1]))
            content = volume.to_bytes()
            found["nifti"] += [File("input.nii", content), File("input.nii.gz", gzip.compress(content))]
    found["dicom"] = [File("input.dcm", content) for content in dicom_corpus(colour, grey16)]
    return found


def dicom_corpus(colour: np.ndarray, grey16: np.ndarray) -> list[bytes]:
    from pydicom import uid
    from pydicom.dataset import FileDataset, FileMetaDataset

    found = []
    plain, big = uid.ExplicitVRLittleEndian, uid.ImplicitVRLittleEndian
    for pixels in (colour, grey16, np.stack([grey16] * 3), np.stack([colour] * 2), grey16.astype(np.uint8)):
        for syntax in (plain, big, uid.RLELossless, uid.JPEGLSLossless, uid.JPEG2000Lossless):
            meta = FileMetaDataset()
            meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.77.1.5.1"
            meta.MediaStorageSOPInstanceUID, meta.TransferSyntaxUID = "1.2.3", big if syntax == big else plain
            data = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
            data.SOPClassUID, data.SOPInstanceUID = meta.MediaStorageSOPClassUID, "1.2.3"
            data.StudyInstanceUID, data.SeriesInstanceUID, data.PatientName = "1.2", "1.2.4", "A^B"
            is_colour = pixels.shape[-1] == 3
            data.SamplesPerPixel = 3 if is_colour else 1
            data.PhotometricInterpretation = "RGB" if is_colour else "MONOCHROME2"
            if is_colour:
                data.PlanarConfiguration = 0
            frames = pixels if pixels.ndim == 3 + is_colour else pixels[None]
            data.NumberOfFrames, data.Rows, data.Columns = len(frames), *frames.shape[1:3]
            data.BitsAllocated = data.BitsStored = 8 * pixels.itemsize
            data.HighBit, data.PixelRepresentation = data.BitsStored - 1, 0
            data.WindowCenter, data.WindowWidth, data.RescaleSlope, data.RescaleIntercept = 500, 900, 1.5, -3
            data.PixelData = pixels.tobytes()
            if syntax not in (plain, big):
                data.compress(syntax, generate_instance_uid=False)
            out = io.BytesIO()
            data.save_as(out)
            found.append(out.getvalue())
    return found


class Readers:
    """The image readers."""

    def prepare(self, folder: Path, seed: int) -> None:
        """Nothing is needed besides the file itself."""

    def corpus(self, folder: Path, seed: int) -> dict[str, list[File]]:
        return corpus(seed)

    def change(self, file: File, rng: random.Random) -> bytes:
        if file.name.endswith(".nii.gz") and rng.random() < 0.7:
            return gzip.compress(damaged(gzip.decompress(file.content), rng), 1)
        return damaged(file.content, rng)

    def read(self, kind: str, path: Path) -> str:
        """Read a file as `predict` does; return what happened."""
        from ttdg.data import load_benchmark
        from ttdg.data.raster import pixel_limit
        from ttdg.data.unlabelled.images import Refused, _read
        from ttdg.newsite.inputs import find_files
        from ttdg.newsite.predict import PIXELS

        found = find_files([path], path.parent / "out")
        benchmark, outcome = load_benchmark("synthetic-fundus"), "set aside"
        with pixel_limit(PIXELS):
            for image in found.images[:3]:
                outcome = "refused" if isinstance(_read(image, benchmark, True), Refused) else "read"
        return outcome


if __name__ == "__main__":
    sys.exit(fuzz(Readers(), KINDS, __doc__))
