"""A job's records on disk: one compressed csv, a line about the job first, then a row per image × region × metric.

Written and read with the standard library, so that a machine that only runs jobs needs nothing else.
Values are float32 in their shortest exact form; a value that does not exist is empty.
"""

import csv
import gzip
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ttdg.errors import UserError
from ttdg.files import atomic_file

FORMAT = 1  # of records; a change makes every job key another
COLUMNS = ("target", "site", "case", "region", "metric", "value")
SUFFIX = ".csv.gz"
PERCENT = ("dice", "alignment", "alignment_max", "structure", "instance_dice")  # shares, shown in percent
Row = tuple[str, str, str, str, str, float]  # `case` is empty where the value belongs to the whole target


def write_rows(path: Path, about: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Whole or not at all; equal rows give equal bytes."""
    text = io.StringIO()
    text.write(f"#{json.dumps({'format': FORMAT, **about}, sort_keys=True)}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((*row[:5], as_text(row[5])) for row in rows)
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        file.write(gzip.compress(text.getvalue().encode("utf-8"), 6, mtime=0))


def as_text(value: float) -> str:
    return "" if np.isnan(value) else str(np.float32(value))


def read_about(path: Path) -> dict[str, Any]:
    """The line about the job; a file of another format or a damaged one is an error in words."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            line = file.readline()
        about = json.loads(line.removeprefix("#"))
        found = about["format"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not a record of this benchmark ({error.__class__.__name__}); remove it and run the same "
            "`ttdg bench` again: only what it held is made anew"
        ) from None
    if found != FORMAT:
        raise UserError(
            f"{path} has record format {found}, this ttdg reads {FORMAT}; use the ttdg that wrote it, "
            "or run into another folder"
        )
    return about


def read_rows(path: Path) -> list[Row]:
    read_about(path)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        file.readline()
        reader = csv.reader(file)
        if tuple(next(reader)) != COLUMNS:
            raise UserError(f"{path} has other columns than {', '.join(COLUMNS)}; remove it and run again")
        return [(a, b, c, d, e, float(value or "nan")) for a, b, c, d, e, value in reader]
