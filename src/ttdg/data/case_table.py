"""Reading `cases.csv`, an optional table of the patient, split and pixel spacing of a site's cases."""

import csv
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ttdg.errors import suggestion

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Problem:
    """A problem with a file, and its remedy. As text: the file, then `what`."""

    file: Path
    what: str

    def __str__(self) -> str:
        return f"{self.file} {self.what}"


@dataclass(frozen=True)
class CaseRow:
    """One row of the table; a value is None where the table has none."""

    patient: str | None = None
    split: str | None = None
    spacing: tuple[float, float] | None = None  # (y, x): height and width of a pixel in millimetres
    slice_spacing: float | None = (
        None  # between the centres of neighbouring slices of a volume, in millimetres
    )


def read_cases(path: Path) -> tuple[Mapping[str, CaseRow], tuple[Problem, ...]]:
    """Return the rows by case name, and the problems of the table. A missing file has no rows.

    Columns other than case, patient, split, spacing_y, spacing_x and spacing_z are ignored.
    """
    if not path.is_file():
        return {}, ()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        return {}, (Problem(path, f"is no csv file in UTF-8 ({error}); save it in that format"),)
    if lines and "case" not in lines[0]:
        columns = [column for column in lines[0] if column]
        return {}, (Problem(path, f"lacks the column 'case'{suggestion('case', columns)}; add or rename it"),)
    rows: dict[str, CaseRow] = {}
    problems = []
    for number, line in enumerate(lines, start=2):
        case = _text(line, "case")
        try:
            if case in rows:
                raise ValueError(f"names the case {case!r} a second time; keep one line for each case")
            rows[case] = _row(line)
        except ValueError as error:
            problems.append(Problem(path, f"line {number} {error}"))
    return rows, tuple(problems)


def _row(line: Mapping[str, str | None]) -> CaseRow:
    split, y, x = _text(line, "split"), _text(line, "spacing_y"), _text(line, "spacing_x")
    if split and split not in SPLITS:
        raise ValueError(f"has the split {split!r}; write {' or '.join(SPLITS)}, or leave it empty")
    spacing = _spacing(y, x) if y or x else None
    z = _text(line, "spacing_z")
    return CaseRow(_text(line, "patient") or None, split or None, spacing, _length(z) if z else None)


def _text(line: Mapping[str, str | None], column: str) -> str:
    return normalised_name((line.get(column) or "").strip())


def normalised_name(name: str) -> str:
    """Return the name in Unicode form NFC. macOS writes é as two characters, other systems as one."""
    return unicodedata.normalize("NFC", name)


def _spacing(y: str, x: str) -> tuple[float, float]:
    try:
        return _length(y), _length(x)
    except ValueError:
        what = f"has the spacing {y!r} × {x!r}; write millimetres in both columns, or leave both empty"
        raise ValueError(what) from None


def _length(text: str) -> float:
    try:
        if 0 < (length := float(text)) < float("inf"):
            return length
    except ValueError:
        pass
    raise ValueError(f"has the spacing_z {text!r}; write millimetres, or leave it empty")
