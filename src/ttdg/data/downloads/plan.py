"""Finding the cases of a data set in its download folder."""

import csv
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttdg.data.case_table import SPLITS, Problem, normalised_name
from ttdg.data.downloads.description import DatasetDescription, MaskSpec, PartSpec, expression
from ttdg.data.sites import JUNK
from ttdg.errors import UserError

ARCHIVES = (".zip", ".tar", ".gz", ".rar", ".7z", ".tgz")
DICOM = ".dcm"
NEVER = r"(?!)"  # an expression that matches no path
Groups = Mapping[str, str]


@dataclass(frozen=True)
class FoundCase:
    """An image of a download with its masks, and its place in the benchmark folder."""

    site: str
    name: str
    image: Path
    masks: tuple[tuple[MaskSpec, Path], ...]
    patient: str | None = None
    split: str | None = None
    label: str | None = None  # its class, in class folders


@dataclass(frozen=True)
class DownloadContent:
    """The cases of a download, sorted by site and name, and the images that cannot become cases."""

    cases: tuple[FoundCase, ...]
    problems: tuple[Problem, ...]


def find_cases(
    source: Path, description: DatasetDescription, rater: str | None, table: Path | None = None
) -> DownloadContent:
    """Return the cases of a download.

    Args:
        source: The download folder.
        description: The data set.
        rater: Whose masks are taken, if the data set has several raters.
        table: A csv file with the column `case` and any of `site`, `patient` and `split`, which overrule the download.
            A case is named as CASE, or as SITE/CASE with its site in the download.
    """
    if not source.is_dir():
        raise UserError(f"{source} is no folder; name the folder with the extracted download")
    ignored = expression(description.ignore or NEVER)
    paths = sorted(path for path in _paths(source) if not ignored.fullmatch(path))
    found: dict[tuple[str, ...], FoundCase] = {}
    problems: dict[tuple[str, ...], Problem] = {}
    for part in description.parts:
        earlier = set(found)
        masks = [_by_groups(paths, mask, description.raters.get(rater or "", "")) for mask in part.masks]
        for path in paths:
            if (match := expression(part.image).fullmatch(path)) is None:
                continue
            case = _case(source / path, match.groupdict(default=""), part)
            key = _place(case)
            if key in earlier:
                continue
            files, reason = _masks_of(match.groupdict(default=""), part.masks, masks, source)
            if key in found:
                reason = (
                    f"is the case {case.name} of {case.site}, as {found[key].image} is; remove one of them"
                )
                problems[(*key, path)] = Problem(case.image, reason)
            elif reason:
                problems.setdefault(key, Problem(case.image, reason))
            else:
                found[key] = replace(case, masks=files)
                problems.pop(key, None)
    if not found and not problems:
        raise UserError(_nothing(source, paths, description))
    cases = _with_patients(list(found.values()), source, paths, description)
    unused = list[Problem]()
    if table is not None:
        cases, unused = _with_table(cases, table)
    return DownloadContent(tuple(sorted(cases, key=_place)), (*problems.values(), *unused))


def _place(case: FoundCase) -> tuple[str, str, str]:
    return case.site, case.label or "", case.name


def _paths(source: Path) -> Iterator[str]:
    """Yield the files below a folder, without those of file managers. A folder of DICOM files counts as one."""
    for folder, folders, files in os.walk(source, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith((".", "__MACOSX"))]
        inside = Path(folder).relative_to(source)
        if any(name.lower().endswith(DICOM) for name in files):
            yield f"{inside.as_posix()}/"
        for name in files:
            hidden = name.startswith(".") or name.lower() in JUNK or name.endswith(":Zone.Identifier")
            if not hidden and not name.lower().endswith(DICOM):
                yield (inside / name).as_posix()


def _case(image: Path, groups: Groups, part: PartSpec) -> FoundCase:
    site = _meaning(groups.get("site", ""), part.sites)
    place = part.site.format_map({**groups, "site": site})
    name = normalised_name(part.name.format_map(groups).replace(" ", "_"))
    label = _meaning(groups["class"], part.classes) if "class" in groups else None
    return FoundCase(
        place, name, image, (), groups.get("patient"), part.splits.get(groups.get("split", "").lower()), label
    )


def _meaning(value: str, known: Mapping[str, str]) -> str:
    """Return what a value of a path stands for, in whatever letter case; one that is not known, in lower case."""
    return {name.lower(): meaning for name, meaning in known.items()}.get(value.lower(), value.lower())


def _by_groups(paths: Iterable[str], mask: MaskSpec, rater: str) -> dict[tuple[str, ...], list[str]]:
    """Return the matching paths by the values of their groups."""
    pattern, found = expression(mask.file, rater), defaultdict(list)
    for path in paths:
        if match := pattern.fullmatch(path):
            found[_key(match.groupdict(default=""), pattern.groupindex)].append(path)
    return found


def _key(groups: Groups, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(groups[name].lower() for name in sorted(names))


def _masks_of(
    groups: Groups,
    specs: Sequence[MaskSpec],
    found: Sequence[Mapping[tuple[str, ...], list[str]]],
    source: Path,
) -> tuple[tuple[tuple[MaskSpec, Path], ...], str]:
    """Return the masks of an image, and a reason if one is missing or cannot be chosen."""
    files = []
    for spec, by_groups in zip(specs, found, strict=True):
        matching = by_groups.get(_key(groups, expression(spec.file).groupindex), [])
        if not matching:
            return (), "has no mask in the download; remove the image, or download its mask"
        if len(matching) > 1 and spec.several is None:
            return (), f"has several masks, {matching[0]} and {matching[1]}; keep one of them"
        files.append((spec, source / matching[-1]))
    return tuple(files), ""


def _nothing(source: Path, paths: Sequence[str], description: DatasetDescription) -> str:
    archives = [path for path in paths if path.lower().endswith(ARCHIVES)]
    packed = f"; extract {archives[0]} first" if archives else ""
    return f"{source} holds no image of {description.title}{packed}. Expected: {description.layout}"


def _with_patients(
    cases: Sequence[FoundCase], source: Path, paths: Sequence[str], description: DatasetDescription
) -> list[FoundCase]:
    """Return the cases with patients of the download's own table."""
    patients: dict[str, str] = {}
    if (table := description.table) is not None:
        for path in filter(expression(table.file).fullmatch, paths):
            lines = read_csv(source / path)
            patients |= {
                line.get(table.case, ""): line[table.patient] for line in lines if line.get(table.patient)
            }
    return [replace(case, patient=patients.get(case.name, case.patient)) for case in cases]


def _with_table(cases: Sequence[FoundCase], table: Path) -> tuple[list[FoundCase], list[Problem]]:
    """Return the cases with all that a given table says, and its lines that fit no case.

    A table that gives two cases the same place raises `UserError`, because the files of one would replace the other's.
    """
    rows: dict[str, dict[str, Any]] = {}
    for line in read_csv(table):
        if (split := line.get("split")) and split not in SPLITS:
            raise UserError(f"{table} has the split {split!r}; write {' or '.join(SPLITS)}")
        if (site := line.get("site")) and (site.startswith(".") or {"/", "\\"} & set(site)):
            raise UserError(f"{table} has the site {site!r}; write a name that can be that of a folder")
        rows[line.get("case", "")] = {key: line[key] for key in ("site", "patient", "split") if line.get(key)}
    placed, unused = dict[tuple[str, ...], FoundCase](), set(rows)
    for case in cases:
        names = (case.name, f"{case.site}/{case.name}")  # the longer one overrules the other
        changed = replace(case, **{key: value for name in names for key, value in rows.get(name, {}).items()})
        if (other := placed.setdefault(_place(changed), changed)) is not changed:
            raise UserError(
                f"{table} makes {other.image} and {case.image} the case {case.name} of {changed.site}; name cases that "
                "several sites have as SITE/CASE, or give another site"
            )
        unused -= set(names)
    return list(placed.values()), [
        Problem(table, f"has a line for {name!r}, which is no case of the download")
        for name in sorted(unused)
    ]


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the lines of a csv file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [
                {key: (value or "").strip() for key, value in line.items() if key}
                for line in csv.DictReader(file)
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is no csv file in UTF-8 ({error}); save it in that format") from None
