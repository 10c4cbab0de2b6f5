"""A site is a folder: `images/`, `masks/` matched by stem, and perhaps a `cases.csv`."""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ttdg.data.case_table import CaseRow, Problem, normalised_name, read_cases
from ttdg.data.readers import READERS, readable
from ttdg.errors import UserError, suggestion

JUNK = ("thumbs.db", "desktop.ini")  # left by file managers, beside names that start with a dot


@dataclass(frozen=True)
class Case:
    """One picture and what is known of it. Without a table of cases, each is a patient of its own."""

    name: str
    image: Path
    mask: Path | None
    patient: str
    split: str | None = None  # "train" or "test", where the site's table fixes it
    spacing: tuple[float, float] | None = None  # (y, x) in millimetres


@dataclass(frozen=True)
class Site:
    name: str
    cases: tuple[Case, ...]


def find_sites(root: Path, names: Collection[str] | None = None) -> dict[str, Site]:
    """The sites under `root`, or those named, sorted. Raises on the first that is not in order."""
    folders = site_folders(root)
    for name in names or ():
        if name not in folders:
            raise UserError(f"{root} has no site {name!r}{suggestion(name, folders)}")
    sites = {}
    for name in sorted(folders if names is None else set(names)):
        sites[name], problems = scan_site(folders[name])
        if problems:
            rest = len(problems) - 1
            more = f" (and {rest} more: `ttdg data check` lists them)" if rest else ""
            raise UserError(f"{problems[0]}{more}")
    return sites


def open_folder(folder: Path) -> tuple[Case, ...]:
    """The images of a plain folder, without masks, sorted by name; files of other types are passed over."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; name one that holds images")
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
    """(train, held out), by the hash of each patient.

    A patient's side depends on nothing but its name and `salt`, so it is the same on every machine, in any
    order and whatever is added; and the frames of one patient stay together. The price: `fraction` is met on
    average only. A case whose table fixes its split stays there.
    """
    train: list[Case] = []
    held_out: list[Case] = []
    for case in cases:
        out = case.split == "test" if case.split else _share(case.patient, salt) < fraction
        (held_out if out else train).append(case)
    return tuple(train), tuple(held_out)


def site_folders(root: Path) -> dict[str, Path]:
    """Every folder that has `images` or `masks` in it; at least one."""
    if not root.is_dir():
        raise UserError(f"{root} is no folder; name one that holds a folder for each site")
    found = {
        folder.name: folder
        for folder in sorted(root.iterdir())
        if any((folder / part).is_dir() for part in ("images", "masks")) and not folder.name.startswith(".")
    }
    if not found:
        hint = f"; did you mean {root.resolve().parent}?" if (root / "images").is_dir() else ""
        raise UserError(f"{root} holds no site: put pictures in {root}/SITE/images and SITE/masks{hint}")
    return found


def scan_site(folder: Path) -> tuple[Site, tuple[Problem, ...]]:
    """A site as its file names tell it, with what is wrong among them. Opens no picture."""
    images, image_problems = _pictures(folder / "images")
    masks, mask_problems = _pictures(folder / "masks")
    rows, row_problems = read_cases(folder / "cases.csv")
    problems = [*image_problems, *mask_problems, *row_problems, *_unpaired(folder, images, masks, rows)]
    cases = []
    for name in sorted(images):
        row = rows.get(name, CaseRow())
        cases.append(Case(name, images[name], masks.get(name), row.patient or name, row.split, row.spacing))
    return Site(folder.name, tuple(cases)), (*problems, *_straddling(cases, folder))


def _unpaired(
    folder: Path, images: Mapping[str, Path], masks: Mapping[str, Path], rows: Mapping[str, CaseRow]
) -> list[Problem]:
    """A site without a folder of masks is no problem here: it may be one to be segmented."""
    problems = []
    if not images:
        problems.append(Problem(folder / "images", "is empty; put images there, or take the site out"))
    if (folder / "masks").is_dir():
        for name in sorted(images.keys() - masks.keys()):
            problems.append(Problem(images[name], f"has no mask; put one at {folder / 'masks' / name}.png"))
    for name in sorted(masks.keys() - images.keys()):
        problems.append(Problem(masks[name], "is a mask without an image; give it the name of its image"))
    for name in sorted(rows.keys() - images.keys()):
        problems.append(Problem(folder / "cases.csv", f"names {name!r}, which has no image; take it out"))
    return problems


def _straddling(cases: Iterable[Case], folder: Path) -> list[Problem]:
    """Patients whose cases a table puts on both sides, or only in part on one."""
    sides: dict[str, set[str | None]] = defaultdict(set)
    for case in cases:
        sides[case.patient].add(case.split)
    what = "does not give all cases of the patient {!r} the same split; do so"
    return [Problem(folder / "cases.csv", what.format(name)) for name, seen in sides.items() if len(seen) > 1]


def _pictures(folder: Path) -> tuple[Mapping[str, Path], list[Problem]]:
    files = _files(folder) if folder.is_dir() else []
    what = f"is of no known type; convert it to one of {', '.join(READERS)}, or take it out"
    pictures, duplicates = _by_stem([path for path in files if readable(path)])
    return pictures, [*(Problem(path, what) for path in files if not readable(path)), *duplicates]


def _by_stem(files: Iterable[Path]) -> tuple[Mapping[str, Path], list[Problem]]:
    pictures: dict[str, Path] = {}
    problems = []
    for path in files:
        name = normalised_name(path.stem)
        if name in pictures:
            twin = pictures[name].name
            problems.append(Problem(path, f"has the name of {twin} beside it; rename or remove one"))
        else:
            pictures[name] = path
    return pictures, problems


def _files(folder: Path) -> list[Path]:
    found = (path for path in folder.iterdir() if path.is_file())
    return sorted(path for path in found if not path.name.startswith(".") and path.name.lower() not in JUNK)


def _share(patient: str, salt: str) -> float:
    """A number in [0, 1] that looks random and is a function of its arguments only."""
    digest = hashlib.blake2b(f"{salt}\0{patient}".encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
