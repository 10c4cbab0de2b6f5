"""Frames of DICOM images, as a viewer shows them in 8-bit RGB or as physical values.

- Colour of any photometric interpretation becomes RGB; palettes are applied.
- The modality transformation (rescale slope and intercept, or its table) comes first.
- Grey with a window (the first, if there are several) is mapped to 0…255 by that window.
- Grey of at most 8 bits without a window is scaled by its number of bits.
- Other grey is stretched from its smallest to its largest value, without pixels of padding.
- MONOCHROME1 is inverted, so that large values are bright everywhere.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float, Num, UInt8
from PIL import Image

from ttdg.data.bit_depth import ROWS, stretch_to_bytes
from ttdg.data.coverage.decoded import missing_pixels
from ttdg.data.dicom.codestream import wrong_codestream
from ttdg.data.dicom.header import ClampedFile, DicomImage, frame_group, read_dicom_header, silence
from ttdg.errors import UserError

GROUPS = (0x52009229, 0x52009230)  # functional groups, shared and per frame


def frame_picture(image: DicomImage, frame: int) -> UInt8[np.ndarray, "h w 3"]:
    """Return a frame in 8-bit RGB."""
    with _reading(image.path):
        values, tags = _decoded(image, frame)
        if values.ndim == 3:
            return _bytes_of_colour(values, image.path)
        grey = _grey_bytes(values, tags, frame, image.path)
        return np.stack([grey, grey, grey], axis=-1)


def frame_values(image: DicomImage, frame: int) -> Float[np.ndarray, "h w"]:
    """Return the physical values of a grey frame; those of MONOCHROME1 are negated, so that large is bright."""
    with _reading(image.path):
        values, tags = _decoded(image, frame)
        if values.ndim == 3:
            raise UserError(
                f"{image.path} is a colour image, but a volume has grey values; use images instead"
            )
        physical = _physical(values, tags, frame).astype(np.float32)
        return -physical if _inverted(tags) else physical


def read_dicom_image(file: BinaryIO, path: Path) -> UInt8[np.ndarray, "h w 3"]:
    """Return the only frame of a file in 8-bit RGB."""
    return frame_picture(_only_frame(path), 0)


def read_dicom_mask(file: BinaryIO, path: Path) -> UInt8[np.ndarray, "h w"]:
    """Return the stored values of the only frame of a grey file, which are labels."""
    with _reading(path):
        values, _ = _decoded(_only_frame(path), 0)
        if values.ndim != 2 or not np.isin(values, np.arange(256)).all():
            raise UserError(
                f"{path} is a mask with colours or with values above 255; save labels as 8-bit grey"
            )
        return values.astype(np.uint8)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what a damaged file raises inside the block into `UserError`, without quoting it."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        if error.strerror:
            raise
        raise UserError(_damaged(path)) from None
    except Exception:  # noqa: BLE001  decoders validate a frame while decoding it, and raise anything
        raise UserError(_damaged(path)) from None


def _only_frame(path: Path) -> DicomImage:
    image = read_dicom_header(path)
    if image.frames > 1:
        raise UserError(
            f"{path} holds {image.frames} frames instead of one; save each frame as a separate file"
        )
    return image


def _decoded(image: DicomImage, frame: int) -> tuple[Num[np.ndarray, "..."], Any]:
    """Return the stored values of a frame, colours as RGB, and the tags about pixels."""
    silence()
    _check_size(image)
    from pydicom import Dataset
    from pydicom.pixels import apply_color_lut, pixel_array

    tags = Dataset()
    syntax = _checked_syntax(image, frame)
    with ClampedFile(image.path) as file:
        values = pixel_array(
            file, ds_out=tags, index=frame, specific_tags=list(GROUPS), transfer_syntax_uid=syntax
        )
    if tags.PhotometricInterpretation == "PALETTE COLOR":
        table = apply_color_lut(values, tags)
        values = (table >> 8).astype(np.uint8) if table.dtype == np.uint16 else table
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in (3, 4)):
        raise UserError(f"{image.path} has pixels of an unknown kind; export it as grey or RGB")
    return values, tags


def _check_size(image: DicomImage) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.pixels > limit:
        raise UserError(
            f"{image.path} claims more than {limit / 1e6:.0f} megapixels, so that reading it could fill the memory; "
            "scale the image down, or raise the limit of pixels if the file comes from a source that you trust"
        )


def _checked_syntax(image: DicomImage, frame: int) -> str:
    """Return the transfer syntax; refuse a compressed frame that is incomplete or of another size than its header."""
    from pydicom import dcmread, uid
    from pydicom.encaps import get_frame

    with ClampedFile(image.path) as file:
        tags = dcmread(file, stop_before_pixels=True, force=True, specific_tags=["NumberOfFrames"])
        syntax = tags.file_meta.get("TransferSyntaxUID")
        if syntax is None:  # a file without the signature
            return uid.ImplicitVRLittleEndian if tags.original_encoding[0] else uid.ExplicitVRLittleEndian
        if not syntax.is_encapsulated:
            return syntax
        _check_decoder(syntax, image)
        if file.read(8)[4:6] in (b"OB", b"OW"):  # an explicit type, followed by four bytes of length
            file.seek(4, io.SEEK_CUR)
        data = get_frame(file, frame, number_of_frames=image.frames)
    reason = wrong_codestream(data, image.rows, image.columns)
    if reason is None and data.startswith(b"\xff\xd8\xff") and b"\xff\xc0" in data[:4096]:
        packed = io.BytesIO(data)
        with Image.open(packed, formats=("JPEG",)) as picture:
            picture.load()
            reason = missing_pixels(picture, packed)
    if reason is not None:
        raise UserError(f"{image.path} is truncated or damaged ({reason}); copy or export it again")
    return syntax


def _check_decoder(syntax: Any, image: DicomImage) -> None:
    """Refuse a transfer syntax that no installed package reads."""
    from pydicom.pixels import get_decoder
    from pydicom.uid import JPEGExtended12Bit

    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise UserError(
            f"{image.path} is compressed as {syntax.name}, which is not read; convert it to another transfer syntax"
        ) from None
    deep = syntax == JPEGExtended12Bit and image.bits > 8  # beyond Pillow
    if not decoder.is_available or (deep and "pylibjpeg" not in decoder.available_plugins):
        raise UserError(
            f"{image.path} is compressed as {syntax.name}; install the package pylibjpeg-libjpeg, which reads it, or "
            "convert it to another transfer syntax"
        )


def _bytes_of_colour(values: Num[np.ndarray, "h w c"], path: Path) -> UInt8[np.ndarray, "h w 3"]:
    colour = values[..., :3]
    return colour if colour.dtype == np.uint8 else stretch_to_bytes(colour, path)


def _grey_bytes(
    values: Num[np.ndarray, "h w"], tags: Any, frame: int, path: Path
) -> UInt8[np.ndarray, "h w"]:
    from pydicom.pixels import apply_voi

    place, bits = frame_group(tags, frame, "FrameVOILUTSequence"), int(tags.BitsStored)
    window = _window(place)
    if window is None and place.get("VOILUTSequence"):
        table = place.VOILUTSequence[0]
        looked_up = apply_voi(_physical(values, tags, frame).astype(np.int64), place)
        grey = stretch_to_bytes(looked_up, path, (0.0, 2.0 ** int(table.LUTDescriptor[2]) - 1))
    elif window is not None:
        grey = _by_window(values, tags, frame, *window)
    elif bits <= 8 and values.dtype.kind == "u":
        grey = stretch_to_bytes(values, path, (0.0, 2.0**bits - 1))
    else:
        physical = _physical(values, tags, frame)
        padding = tags.get("PixelPaddingValue")
        if padding is not None and not (real := values != padding).all() and real.any():
            physical = np.where(real, physical, physical[real].min())
        grey = stretch_to_bytes(physical, path)
    return 255 - grey if _inverted(tags) else grey


def _window(place: Any) -> tuple[float, float, str] | None:
    """Return the centre, the width and the function of the first window."""
    values = [place.get(name) for name in ("WindowCenter", "WindowWidth")]
    if any(value is None or value == "" for value in values):
        return None
    centre, width = (float(value[0] if hasattr(value, "__len__") else value) for value in values)
    shape = str(place.get("VOILUTFunction") or "LINEAR")
    least = 1.0 if shape == "LINEAR" else np.nextafter(0, 1)
    return (centre, width, shape) if np.isfinite([centre, width]).all() and width >= least else None


def _by_window(
    values: Num[np.ndarray, "h w"], tags: Any, frame: int, centre: float, width: float, shape: str
) -> UInt8[np.ndarray, "h w"]:
    """Map values by a window, as PS3.3 C.11.2.1.2 and C.11.2.1.3 of the standard define its three functions."""
    result = np.empty(values.shape, np.uint8)
    for start in range(0, len(values), ROWS):
        strip = _physical(values[start : start + ROWS], tags, frame).astype(np.float64)
        if shape == "SIGMOID":
            share = 1 / (1 + np.exp(np.clip(-4 * (strip - centre) / width, -700, 700)))
        elif shape == "LINEAR_EXACT":
            share = (strip - centre) / width + 0.5
        elif width > 1:
            share = (strip - (centre - 0.5)) / (width - 1) + 0.5
        else:
            share = (strip > centre - 0.5).astype(np.float64)
        result[start : start + ROWS] = np.rint(np.clip(share, 0, 1) * 255)
    return result


def _physical(values: Num[np.ndarray, "h w"], tags: Any, frame: int) -> Num[np.ndarray, "h w"]:
    """Apply the modality transformation."""
    from pydicom.pixels import apply_modality_lut

    place = frame_group(tags, frame, "PixelValueTransformationSequence")
    if place.get("ModalityLUTSequence"):
        return apply_modality_lut(values, place)
    slope, intercept = (place.get(name) for name in ("RescaleSlope", "RescaleIntercept"))
    if slope is None or intercept is None or (float(slope), float(intercept)) == (1.0, 0.0):
        return values
    return values * np.float32(slope) + np.float32(intercept)


def _inverted(tags: Any) -> bool:
    return tags.PhotometricInterpretation == "MONOCHROME1"


def _damaged(path: Path) -> str:
    if path.stat().st_size == 0:
        return f"{path} is empty (0 bytes); copy or export it again"
    return f"{path} has DICOM pixel data that are missing, truncated or damaged; copy or export it again"
