"""Writing masks as NIfTI files that lie where their image does."""

import gzip
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from ttdg.data.volumes.nifti import AXES, open_volume, unit_of_length

PLACE = (
    "qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z",
    "srow_x", "srow_y", "srow_z",
)  # fmt: skip
"""Fields of a header that say where the voxels lie; the first four values of `pixdim` belong to them."""


def write_mask(path: Path, like: Path, labels: UInt8[np.ndarray, "d h w"]) -> None:
    """Write the axial slices of a mask as a volume with the shape, the place (`PLACE`) and the units of `like`.

    Both forms of the place are copied, because programs differ in which one they read. Nothing else of the header is
    copied, because free text in it may name a patient.
    """
    import nibabel
    from nibabel import orientations

    file = open_volume(like)
    back = orientations.ornt_transform(
        orientations.axcodes2ornt(tuple(AXES)), orientations.io_orientation(file.affine)
    )
    values = orientations.apply_orientation(labels.transpose(2, 1, 0), back)
    mask = nibabel.Nifti1Image(np.ascontiguousarray(values).reshape(file.shape[:3]), file.affine)
    for name in PLACE:
        if name in file.header:
            mask.header[name] = file.header[name]
    if "pixdim" in file.header:
        mask.header["pixdim"][:4] = file.header["pixdim"][:4]
    mask.header["xyzt_units"] = unit_of_length(file.header)
    with path.open("wb") as out:
        if like.name.lower().endswith(".gz"):
            with gzip.GzipFile("", "wb", fileobj=out, mtime=0) as packed:
                mask.to_stream(packed)
        else:
            mask.to_stream(out)
