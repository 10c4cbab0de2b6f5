"""`cases.csv`: what is known of a site's cases beside their pictures, all of it optional."""

import csv
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ttdg.errors import suggestion

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file, and the remedy."""

    file: Path
    what: str

    def __str__(self) -> str:
        return f"{self.file} {self.what}"


@dataclass(frozen=True)
class CaseRow:
    patient: str | None = None
    split: str | None = None
    spacing: tuple[float, float] | None = None  # (y, x), a pixel's sides in millimetres


def read_cases(path: Path) -> tuple[Mapping[str, CaseRow], tuple[Problem, ...]]:
    """Rows by case. Columns other than case, patient, split, spacing_y and spacing_x are ignored."""
    if not path.is_file():
        return {}, ()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        return {}, (Problem(path, f"is no csv file in UTF-8 ({error}); save it as one"),)
    if lines and "case" not in lines[0]:
        known = [column for column in lines[0] if column]
        return {}, (Problem(path, f"lacks the column 'case'{suggestion('case', known)}; name it so"),)
    rows: dict[str, CaseRow] = {}
    problems = []
    for number, line in enumerate(lines, start=2):
        case = _text(line, "case")
        try:
            if case in rows:
                raise ValueError(f"names the case {case!r} a second time; keep one of its lines")
            rows[case] = _row(line)
        except ValueError as error:
            problems.append(Problem(path, f"line {number} {error}"))
    return rows, tuple(problems)


def _row(line: Mapping[str, str | None]) -> CaseRow:
    split, y, x = _text(line, "split"), _text(line, "spacing_y"), _text(line, "spacing_x")
    if split and split not in SPLITS:
        raise ValueError(f"says split {split!r}; write {' or '.join(SPLITS)}, or leave it empty")
    return CaseRow(_text(line, "patient") or None, split or None, _spacing(y, x) if y or x else None)


def _text(line: Mapping[str, str | None], column: str) -> str:
    return normalised_name((line.get(column) or "").strip())


def normalised_name(name: str) -> str:
    """A Mac writes é as two characters, others as one: names must not depend on where a folder was copied."""
    return unicodedata.normalize("NFC", name)


def _spacing(y: str, x: str) -> tuple[float, float]:
    try:
        spacing = float(y), float(x)
        if all(0 < side < float("inf") for side in spacing):
            return spacing
    except ValueError:
        pass
    raise ValueError(f"says spacing {y!r} × {x!r}; write millimetres in both, or leave both empty")
