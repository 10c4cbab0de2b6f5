"""Fuzz every image reader with damaged files, and count what must not happen.

    python benchmarks/fuzz_readers.py --count 10000 --seed 0
    python benchmarks/fuzz_readers.py --count 10000 --seed 0 --kinds dicom nifti --keep findings/

Valid files of every kind are made in memory (the corpus depends on the seed alone). Each input is one of them after a
few random changes: bytes, bits, large integers, cuts, repeated and exchanged parts. It is read as `ttdg predict` reads
it. A reader may return an image or raise a `UserError`. Counted are

- crash: any other exception, or the death of the process;
- hang: more than 5 seconds for one input;
- memory: more than 2 GB of address space over what the process had before.

A worker process with a limit of address space reads the inputs, and its parent watches the clock. The number of an
input and the seed make the input again; `--keep` also writes each finding to a folder.
"""

import argparse
import faulthandler
import gzip
import io
import multiprocessing
import random
import resource
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import numpy as np

SECONDS, BYTES = 5.0, 2 << 30
KINDS = ("png", "jpeg", "bmp", "tiff", "webp", "nifti", "dicom")
SUFFIX = {"png": ".png", "jpeg": ".jpg", "bmp": ".bmp", "tiff": ".tif", "webp": ".webp", "dicom": ".dcm"}


def corpus(seed: int) -> dict[str, list[tuple[str, bytes]]]:
    """Return (suffix, content) of valid files by kind."""
    import nibabel
    import tifffile
    from PIL import Image

    rng = np.random.default_rng(seed)
    colour = np.asarray(Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8)).resize((64, 48)))
    grey16 = colour[..., 0].astype(np.uint16) * 16
    found: dict[str, list[tuple[str, bytes]]] = {kind: [] for kind in KINDS}

    def add(kind: str, picture: Image.Image, **options: object) -> None:
        out = io.BytesIO()
        picture.save(out, kind.upper(), **options)
        found[kind].append((SUFFIX[kind], out.getvalue()))

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
        found["tiff"].append((".tif", out.getvalue()))
    for dtype in (np.uint8, np.int16, np.float32, np.float64):
        for klass in (nibabel.Nifti1Image, nibabel.Nifti2Image):
            volume = klass(rng.integers(0, 100, (7, 6, 5)).astype(dtype), np.diag([-1.0, -1, 3, 1]))
            found["nifti"] += [(".nii", volume.to_bytes()), (".nii.gz", gzip.compress(volume.to_bytes()))]
    found["dicom"] = [(".dcm", content) for content in dicom_corpus(colour, grey16)]
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


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return the content after one to six random changes, most of them in its first 600 bytes."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        if not data:
            break
        end = min(len(data), 600) if rng.random() < 0.6 else len(data)
        at, change = rng.randrange(end), rng.randrange(7)
        if change == 0:
            data[at] = rng.randrange(256)
        elif change == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif change == 2:
            value = rng.choice(
                (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFFE, rng.getrandbits(31))
            )
            form = rng.choice(("<B", "<H", ">H", "<I", ">I"))
            data[at : at + struct.calcsize(form)] = struct.pack(
                form, value & (256 ** struct.calcsize(form) - 1)
            )
        elif change == 3 and rng.random() < 0.3:
            del data[at:]
        elif change == 4:
            del data[at : at + rng.randint(1, 16)]
        elif change == 5:
            data[at:at] = data[at : at + rng.randint(1, 64)]
        else:
            other = rng.randrange(len(data))
            size = rng.randint(1, 16)
            data[at : at + size] = data[other : other + size]
    return bytes(data)


def made_input(
    files: dict[str, list[tuple[str, bytes]]], kinds: list[str], seed: int, number: int
) -> tuple[str, bytes]:
    rng = random.Random(f"{seed} {number}")
    suffix, content = rng.choice(files[rng.choice(kinds)])
    if suffix == ".nii.gz" and rng.random() < 0.7:
        return suffix, gzip.compress(damaged(gzip.decompress(content), rng), 1)
    return suffix, damaged(content, rng)


def read(path: Path) -> str:
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


def work(
    connection: "multiprocessing.connection.Connection", kinds: list[str], seed: int, folder: str
) -> None:
    """Read the inputs whose numbers come through the connection."""
    import torch

    torch.set_num_threads(1)
    faulthandler.disable()
    files = corpus(seed)
    for suffix, content in (files[kind][0] for kind in kinds):  # import everything before the limit is set
        path = Path(folder, f"warm{suffix}")
        path.write_bytes(content)
        read(path)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
    connection.send(("ready", ""))
    while (number := connection.recv()) is not None:
        suffix, content = made_input(files, kinds, seed, number)
        path = Path(folder, f"input{suffix}")
        path.write_bytes(content)
        try:
            connection.send((read(path), ""))
        except MemoryError:
            connection.send(("memory", traceback.format_exc(limit=-3)))
        except BaseException:  # noqa: BLE001  whatever a reader raises is the finding
            connection.send(("crash", traceback.format_exc(limit=-4)))
        path.unlink(missing_ok=True)


class Reader:
    """A worker process, started again when it dies or hangs."""

    def __init__(self, kinds: list[str], seed: int, folder: str) -> None:
        self.arguments = kinds, seed, folder
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, *self.arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.connection.recv()

    def outcome(self, number: int) -> tuple[str, str]:
        self.connection.send(number)
        try:
            if self.connection.poll(SECONDS):
                return self.connection.recv()
            outcome = "hang", ""
        except EOFError:
            outcome = "crash", "the process died"
        self.process.kill()
        self.process.join()
        self.start()
        return outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="number of inputs")
    parser.add_argument("--start", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--keep", type=Path, help="folder for inputs with a finding")
    options = parser.parse_args()
    files, counts, began = corpus(options.seed), Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(options.kinds, options.seed, folder)
        for number in range(options.start, options.start + options.count):
            outcome, text = reader.outcome(number)
            counts[outcome] += 1
            if outcome in ("crash", "hang", "memory"):
                suffix, content = made_input(files, options.kinds, options.seed, number)
                print(f"input {number} ({suffix}): {outcome}\n{text}", flush=True)
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{options.seed}-{number}{suffix}").write_bytes(content)
            if time.monotonic() - began > options.seconds:
                break
        reader.connection.send(None)
    total = sum(counts.values())
    print(f"{total:,} inputs in {time.monotonic() - began:.0f} s, seed {options.seed}: {dict(counts)}")
    return int(bool(counts["crash"] + counts["hang"] + counts["memory"]))


if __name__ == "__main__":
    sys.exit(main())
