"""Fuzz every image reader with damaged files, and count what must not happen.

    python benchmarks/fuzz_readers.py --count 10000 --seed 0
    python benchmarks/fuzz_readers.py --count 10000 --seed 0 --kinds dicom nifti --keep findings/

Valid files of every kind are made in memory (the corpus depends on the seed alone). Each is damaged and then read as
`ttdg predict` reads it, raster and DICOM files also as masks, MetaImage and NRRD as `ttdg data import` reads them;
`fuzz.py` says how, and what is counted. Most damage is below checksums and compression: a PNG gets new checksums, and
the content of gzip and of PNG is compressed again. `--keep` writes each finding to a folder.
"""

import gzip
import io
import random
import struct
import sys
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from fuzz import File, damaged, fuzz, ran_out

KINDS = ("png", "jpeg", "bmp", "tiff", "webp", "nifti", "dicom", "metaimage", "nrrd")
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
    found |= volume_corpus(rng)
    return found


def volume_corpus(rng: np.random.Generator) -> dict[str, list[File]]:
    """Return MetaImage and NRRD files, plain and compressed."""
    voxels = rng.integers(0, 100, (5, 6, 7)).astype("<i2").tobytes()
    meta, nrrd = [], []
    for packed in (False, True):
        head = (
            f"ObjectType = Image\nNDims = 3\nDimSize = 7 6 5\nElementType = MET_SHORT\nElementSpacing = 1 1 3\n"
            f"Offset = 0 0 0\nTransformMatrix = 1 0 0 0 1 0 0 0 1\nCompressedData = {packed}\nElementDataFile = LOCAL\n"
        )
        meta.append(File("input.mha", head.encode() + (zlib.compress(voxels) if packed else voxels)))
        head = (
            f"NRRD0004\ntype: short\ndimension: 3\nspace: left-posterior-superior\nsizes: 7 6 5\nendian: little\n"
            "space directions: (1,0,0) (0,1,0) (0,0,3)\nspace origin: (0,0,0)\n"
            f"encoding: {'gzip' if packed else 'raw'}\n\n"
        )
        nrrd.append(File("input.nrrd", head.encode() + (gzip.compress(voxels) if packed else voxels)))
    return {"metaimage": meta, "nrrd": nrrd}


def changed_png(content: bytes, rng: random.Random) -> bytes:
    """Damage one chunk of a PNG, half of the time its uncompressed pixels, and write a checksum that fits."""
    chunks, at = [], 8
    while at < len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + size]))
        at += 12 + size
    chosen = rng.randrange(len(chunks))
    kind, data = chunks[chosen]
    if kind == b"IDAT" and rng.random() < 0.5:
        data = zlib.compress(damaged(zlib.decompress(data), rng))
    else:
        data = damaged(data, rng)
    chunks[chosen] = kind, data
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    return content[:8] + b"".join(parts)


@cache
def benchmark():
    from ttdg.data import load_benchmark

    return load_benchmark("synthetic-fundus")


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
        if file.name.endswith(".png") and rng.random() < 0.7:
            return changed_png(file.content, rng)
        return damaged(file.content, rng)

    def read(self, kind: str, path: Path) -> str:
        """Read a file as the commands do; return what happened."""
        from ttdg.data.raster import pixel_limit
        from ttdg.data.readers import read_mask
        from ttdg.data.unlabelled.images import Refused, _read
        from ttdg.data.volumes.formats import read_stored
        from ttdg.errors import UserError
        from ttdg.newsite.inputs import PIXELS, find_files

        if kind in ("metaimage", "nrrd"):
            np.asanyarray(read_stored(path).dataobj)
            return "read"
        found, outcome = find_files([path], path.parent / "out"), "set aside"
        if any(map(ran_out, found.set_aside.values())):
            return "memory"
        with pixel_limit(PIXELS):
            for image in found.images[:3]:
                read = _read(image, benchmark(), True)
                outcome = "refused" if isinstance(read, Refused) else "read"
                if isinstance(read, Refused) and ran_out(read.reason):
                    return "memory"
            if kind != "nifti" and found.images:
                try:
                    read_mask(path)
                except UserError as error:
                    if ran_out(str(error)):
                        return "memory"
        return outcome


if __name__ == "__main__":
    sys.exit(fuzz(Readers(), KINDS, __doc__))
