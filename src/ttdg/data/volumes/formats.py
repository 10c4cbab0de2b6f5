"""The file formats of volumes in original downloads. `FORMATS` maps how a name ends to the function that reads it.

Benchmark folders hold NIfTI; other formats are converted when a data set is imported.
"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ttdg.data.raster import DAMAGE
from ttdg.data.volumes.dicom_series import read_series
from ttdg.data.volumes.metaimage import read_metaimage
from ttdg.data.volumes.nifti import read_geometry
from ttdg.data.volumes.nrrd import read_nrrd
from ttdg.errors import UserError

SERIES = "/"  # stands for a folder with the files of a DICOM series


def read_nifti(path: Path) -> Any:
    """Open a NIfTI file; its voxels are read when they are used."""
    import nibabel

    read_geometry(path)  # refuses files without geometry
    return nibabel.load(path)


FORMATS: dict[str, Callable[[Path], Any]] = {
    ".nii.gz": read_nifti,
    ".nii": read_nifti,
    ".mhd": read_metaimage,
    ".mha": read_metaimage,
    ".nrrd": read_nrrd,
    ".nhdr": read_nrrd,
    SERIES: read_series,
}


def read_stored(path: Path) -> Any:
    """Return a volume of any format as a NIfTI image. A folder is a DICOM series."""
    name = f"{path.name.lower()}{SERIES if path.is_dir() else ''}"
    read = next((read for ending, read in FORMATS.items() if name.endswith(ending)), None)
    if read is None:
        raise UserError(f"{path} is no volume of a known type; convert it to one of {', '.join(FORMATS)}")
    try:
        return read(path)
    except UserError:
        raise
    except (*DAMAGE, zlib.error, EOFError) as error:
        raise UserError(f"{path} is truncated or damaged ({error}); copy or export it again") from None
