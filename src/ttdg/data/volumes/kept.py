"""Decoded volumes in bytes. A process keeps two images and two masks, so slices in order decode each volume once."""

from collections.abc import Callable, Hashable
from pathlib import Path
from threading import Lock

import numpy as np
from jaxtyping import Float, UInt8

from ttdg.data.bit_depth import stretch_to_bytes
from ttdg.errors import UserError

CLIP = (5, 95)  # percentiles of a volume to which `clipped-zscore` limits intensities
KEPT = 2  # decoded volumes of each kind
MOST_VOXELS = 180_000_000  # of a volume; decoding takes eight bytes for each
Bytes = UInt8[np.ndarray, "d h w"]

_lock = Lock()
_kept: dict[str, dict[Hashable, Bytes]] = {}  # kind → key → volume, oldest first


def kept_volume(kind: str, key: Hashable, load: Callable[[], Bytes]) -> Bytes:
    """Return a decoded volume, kept from an earlier call with the same key. One thread decodes at a time."""
    with _lock:
        kept = _kept.setdefault(kind, {})
        if key in kept:
            kept[key] = kept.pop(key)  # now the most recently used
        else:
            if len(kept) == KEPT:
                del kept[next(iter(kept))]
            kept[key] = load()
        return kept[key]


def file_key(path: Path) -> tuple[Path, int, int]:
    """Return a key that changes when the file or folder does."""
    try:
        stat = path.stat()
    except OSError as error:
        raise UserError(
            f"cannot open {path} ({error.strerror}); check its name and your permissions"
        ) from None
    return path, stat.st_mtime_ns, stat.st_size


def check_voxels(count: int, path: Path) -> None:
    """Refuse a volume that would not fit into memory, before it is decoded."""
    if count > MOST_VOXELS:
        raise UserError(
            f"{path} claims {count / 1e6:.0f} million voxels, and at most {MOST_VOXELS / 1e6:.0f} million are read, so "
            "that memory is bounded; crop the volume, or save it in parts"
        )


def volume_bytes(values: Float[np.ndarray, "d h w"], path: Path, *, clip: bool) -> Bytes:
    """Map the range of a volume, or with `clip` its 5–95 %, to 0…255."""
    if not clip:
        return stretch_to_bytes(values, path)
    low, high = np.percentile(values.ravel().copy(), CLIP, overwrite_input=True)
    return stretch_to_bytes(values, path, (float(low), float(high)))
