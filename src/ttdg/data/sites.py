"""Sites on disk: a folder with `images/`, `masks/` of the same names, and optionally a `cases.csv`.

A site of a classification has a folder of images for each class instead.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ttdg.data.case_table import CaseRow, Problem, normalised_name, read_cases
from ttdg.data.readers import READERS, readable
from ttdg.data.volumes.dicom_series import is_series
from ttdg.data.volumes.files import case_name, holds_volume, volume_geometry
from ttdg.data.volumes.nifti import SUFFIXES, is_volume
from ttdg.errors import UserError, suggestion

JUNK = ("thumbs.db", "desktop.ini")  # files of file managers; names that start with a dot are also ignored


@dataclass(frozen=True)
class Case:
    """One image with its mask and metadata."""

    name: str  # the file name without its suffix
    image: Path
    mask: Path | None
    patient: str  # the name of the case if the site's table names no patient
    split: str | None = None  # "train" or "test" if the site's table fixes it
    spacing: tuple[float, float] | None = None  # (y, x) in millimetres
    slice_spacing: float | None = None  # along z, in millimetres, if the case is a slice of a volume
    volume: str | None = None  # name of the volume that the case is a slice of
    slice: int | None = None  # number of the slice in this volume, from the feet to the head
    label: str | None = None  # class of the whole image: the name of its folder

    @property
    def labelled(self) -> bool:
        """True if the case has a mask or a class."""
        return self.mask is not None or self.label is not None


@dataclass(frozen=True)
class Site:
    """The cases of one hospital, sorted by name."""

    name: str
    cases: tuple[Case, ...]


def find_sites(root: Path, names: Collection[str] | None = None) -> dict[str, Site]:
    """Return the sites under `root`, all or those named, sorted by name. The first problem raises."""
    folders = site_folders(root)
    for name in names or ():
        if name not in folders:
            raise UserError(f"{root} has no site {name!r}{suggestion(name, folders)}")
    sites = {}
    for name in sorted(folders if names is None else set(names)):
        sites[name], problems = scan_site(folders[name])
        if problems:
            rest = len(problems) - 1
            more = f" (and {rest} more in this site; check the benchmark folder to list them)" if rest else ""
            raise UserError(f"{problems[0]}{more}")
    return sites


def open_folder(folder: Path) -> tuple[Case, ...]:
    """Return the images of a folder as cases without masks, sorted by name. Other files are ignored."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; name a folder that holds images")
    files = [path for path in _files(folder) if readable(path)]
    if not files:
        inside = folder / "images"
        hint = f"; did you mean {inside}?" if inside.is_dir() else ""
        raise UserError(f"{folder} holds no image of a known type ({', '.join(READERS)}){hint}")
    pictures, problems = _by_stem(files)
    if problems:
        raise UserError(str(problems[0]))
    return tuple(Case(name, image, None, name) for name, image in sorted(pictures.items()))


def split(
    cases: Iterable[Case], fraction: float = 0.2, salt: str = ""
) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Split cases by patient into (train, held out).

    The hash of a patient's name and `salt` decides the side. The split is therefore the same on every machine
    and in any order, and keeps all images of a patient together. The held-out share equals `fraction` only on
    average. A split that the site's table fixes is kept.

    If the hash holds out nobody and there are at least two patients, the one with the smallest hash is held out.
    Otherwise the split stays the same when cases are added. A `fraction` of 0 holds out nobody.
    """
    listed = list(cases)
    out = [case.split == "test" if case.split else _share(case.patient, salt) < fraction for case in listed]
    free = {case.patient for case in listed if case.split is None}
    if not any(out) and free and fraction > 0 and len({case.patient for case in listed}) > 1:
        chosen = min(free, key=lambda patient: (_share(patient, salt), patient))
        out = [case.patient == chosen for case in listed]
    pairs = list(zip(listed, out, strict=True))
    return tuple(case for case, held in pairs if not held), tuple(case for case, held in pairs if held)


def site_folders(root: Path) -> dict[str, Path]:
    """Return the folders of the sites by name; raise if there are none.

    Sites are the subfolders that contain `images` or `masks`. If there is none, they are the subfolders that contain
    folders of images, one for each class.
    """
    if not root.is_dir():
        raise UserError(f"{root} is no folder; name a folder that holds a folder for each site")
    inside = [
        folder for folder in sorted(root.iterdir()) if folder.is_dir() and not folder.name.startswith(".")
    ]
    segmented = [folder for folder in inside if _is_segmented(folder)]
    folders = {folder.name: folder for folder in segmented or inside if segmented or class_folders(folder)}
    if not folders:
        hint = f"; did you mean {root.resolve().parent}?" if (root / "images").is_dir() else ""
        raise UserError(
            f"{root} holds no site; put images into {root}/SITE/images and masks into SITE/masks, or the images of "
            f"each class into SITE/CLASS{hint}"
        )
    return folders


def scan_site(folder: Path) -> tuple[Site, tuple[Problem, ...]]:
    """Return a site and the problems of its file names and its table. Of files, only headers of volumes are read."""
    if not _is_segmented(folder):
        return _scan_classes(folder)
    images, image_problems = _pictures(folder / "images")
    masks, mask_problems = _pictures(folder / "masks")
    rows, row_problems = read_cases(folder / "cases.csv")
    problems = [*image_problems, *mask_problems, *row_problems, *_unpaired(folder, images, masks, rows)]
    cases: list[Case] = []
    for name in sorted(images):
        row = rows.get(name, CaseRow())
        mask, patient = masks.get(name), row.patient or name
        case = Case(name, images[name], mask, patient, row.split, row.spacing, row.slice_spacing)
        try:
            cases += _slices_of(case) if holds_volume(case.image) else [case]
        except UserError as error:
            problems.append(Problem(case.image, str(error).removeprefix(f"{case.image} ")))
    return Site(folder.name, tuple(cases)), (*problems, *_straddling(cases, folder))


def _is_segmented(folder: Path) -> bool:
    return any((folder / part).is_dir() for part in ("images", "masks"))


def class_folders(folder: Path) -> list[Path]:
    """Return the folders of a site that hold images directly; their names are the classes."""
    parts = [part for part in sorted(folder.iterdir()) if part.is_dir() and not part.name.startswith(".")]
    return [part for part in parts if any(readable(file) for file in part.iterdir() if file.is_file())]


def _scan_classes(folder: Path) -> tuple[Site, tuple[Problem, ...]]:
    """Return a site with a folder of images for each class. A case is named CLASS/FILE, and is its own patient."""
    cases: list[Case] = []
    problems: list[Problem] = []
    for part in class_folders(folder):
        images, wrong = _pictures(part)
        label = normalised_name(part.name)
        names = {f"{label}/{name}": image for name, image in sorted(images.items())}
        cases += [Case(name, image, None, name, label=label) for name, image in names.items()]
        problems += wrong
    return Site(folder.name, tuple(cases)), tuple(problems)


def _slices_of(case: Case) -> list[Case]:
    """Return the slices of a volume as cases; their spacing is that of the volume, and unknown for sheared axes."""
    if case.mask is not None and not is_volume(case.mask):
        raise UserError(f"{case.image} is a volume, but its mask {case.mask.name} is not; save it as NIfTI")
    geometry = volume_geometry(case.image)
    z, *pixel = geometry.spacing
    known = geometry.orthogonal
    spacing = (pixel[0], pixel[1]) if known else None
    whole = replace(case, volume=case.name, spacing=spacing, slice_spacing=z if known else None)
    return [
        replace(whole, name=f"{case.name}_{number:04}", slice=number) for number in range(geometry.shape[0])
    ]


def _unpaired(
    folder: Path, images: Mapping[str, Path], masks: Mapping[str, Path], rows: Mapping[str, CaseRow]
) -> list[Problem]:
    """Return images without masks and the like. A site may lack the folder `masks`, as a new site does."""
    problems = []
    if not images:
        problems.append(Problem(folder / "images", "is empty; put images there, or remove the site"))
    if (folder / "masks").is_dir():
        for name in sorted(images.keys() - masks.keys()):
            place = f"{folder / 'masks' / name}{SUFFIXES[0] if holds_volume(images[name]) else '.png'}"
            problems.append(Problem(images[name], f"has no mask; put one at {place}"))
    for name in sorted(masks.keys() - images.keys()):
        problems.append(Problem(masks[name], "is a mask without an image; give it the name of its image"))
    for name in sorted(rows.keys() - images.keys()):
        problems.append(Problem(folder / "cases.csv", f"names {name!r}, which has no image; remove the line"))
    return problems


def _straddling(cases: Iterable[Case], folder: Path) -> list[Problem]:
    """Return the patients whose cases do not all have the same split in the table."""
    sides: dict[str, set[str | None]] = defaultdict(set)
    for case in cases:
        sides[case.patient].add(case.split)
    what = "does not give all cases of the patient {!r} the same split; correct the column 'split'"
    mixed = [patient for patient, splits in sides.items() if len(splits) > 1]
    return [Problem(folder / "cases.csv", what.format(patient)) for patient in mixed]


def _pictures(folder: Path) -> tuple[Mapping[str, Path], list[Problem]]:
    files = _files(folder) if folder.is_dir() else []
    what = f"is of no known type; convert it to one of {', '.join((*READERS, *SUFFIXES))}, or remove it"
    known = [path for path in files if readable(path) or holds_volume(path)]
    pictures, duplicates = _by_stem(known)
    return pictures, [*(Problem(path, what) for path in files if path not in known), *duplicates]


def _by_stem(files: Iterable[Path]) -> tuple[Mapping[str, Path], list[Problem]]:
    pictures: dict[str, Path] = {}
    problems = []
    for path in files:
        name = normalised_name(case_name(path))
        if name in pictures:
            other = pictures[name].name
            problems.append(
                Problem(path, f"has the name of {other} in the same folder; rename or remove one")
            )
        else:
            pictures[name] = path
    return pictures, problems


def _files(folder: Path) -> list[Path]:
    files = (path for path in folder.iterdir() if path.is_file() or is_series(path))
    return sorted(path for path in files if not path.name.startswith(".") and path.name.lower() not in JUNK)


def _share(patient: str, salt: str) -> float:
    """Return a pseudo-random number in [0, 1] that depends only on the arguments."""
    digest = hashlib.blake2b(f"{salt}\0{patient}".encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
