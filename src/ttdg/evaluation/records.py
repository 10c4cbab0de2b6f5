"""Records on disk: one compressed csv per scoring, metadata in the first line, then one row per measured value.

A row is (target, site, case, region, metric, value). Values that belong to an image but to no region have an empty
region; values of a whole target have an empty site and case. Values are float32 in their shortest exact form; a value
that does not exist is empty. Files are written and read with the standard library, so that a machine that only runs
jobs needs nothing else.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ttdg.errors import UserError
from ttdg.files import atomic_file

FORMAT = 1  # of records; another format changes every job key
COLUMNS = ("target", "site", "case", "region", "metric", "value")
SUFFIX = ".csv.gz"
PRIMARY = ("dice", "accuracy")  # the metric that compares methods: of a segmentation, of a classification
PERCENT = (*PRIMARY, "alignment", "alignment_max", "structure", "instance_dice", "volume_dice")  # shares
LARGEST = 1 << 28  # bytes of a decompressed record; those of a thousand images take 1 MB
BEST_COMPRESSION = 1032  # of deflate: no byte becomes more bytes than this
Row = tuple[str, str, str, str, str, float]
DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    csv.Error,
    zlib.error,
    RecursionError,
)  # from reading a damaged file

SETTING = ("method", "stream", "batch", "seed")
METRICS = ("dice", "alignment", "structure", "hd95", "assd", "seconds")
CLASS_METRICS = ("accuracy", "seconds")
VOLUME_METRICS = (
    "volume_dice",
    *(f"volume_{name}_{unit}" for unit in ("voxels", "mm") for name in ("hd95", "assd")),
)


def row_label(method: str, views: str, statistics: str = "own", gate: bool = False) -> str:
    """Return the name of a table row: the method, its BatchNorm statistics, the views of its answers, and the gate."""
    based = method if statistics == "own" else f"{method}, {statistics} statistics"
    seen = based if views == "plain" else f"{based} + {views}"
    return f"{seen} + gate" if gate else seen


def label_of(about: Mapping[str, Any]) -> str:
    """Return the name of the table row of an evaluation; older evaluations lack the later fields."""
    return row_label(
        about["method"],
        about.get("views", "plain"),
        about.get("statistics", "own"),
        about.get("gate", False),
    )


def primary_scores(about: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the mean primary metric of each target from the metadata of a record."""
    return about[next((metric for metric in PRIMARY if metric in about), PRIMARY[0])]


def write_rows(path: Path, about: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Write a record file atomically. Equal rows give equal bytes."""
    text = io.StringIO()
    text.write(f"#{json.dumps({'format': FORMAT, **about}, sort_keys=True)}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((*row[:5], as_text(row[5])) for row in rows)
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        file.write(gzip.compress(text.getvalue().encode("utf-8"), 6, mtime=0))


def as_text(value: float) -> str:
    """Return a float32 in its shortest exact form; NaN is empty."""
    return "" if np.isnan(value) else str(np.float32(value))


def read_about(path: Path) -> dict[str, Any]:
    """Read the metadata line; a damaged file or one of another format raises a UserError."""
    try:
        check_size(path)
        with gzip.open(path, "rt", encoding="utf-8") as file:
            line = file.readline()
        about = json.loads(line.removeprefix("#"))
        found = about["format"]
    except DAMAGE as error:
        raise _damaged(path, error) from None
    if found != FORMAT:
        raise UserError(
            f"{path} has record format {found}, this ttdg reads {FORMAT}; use the ttdg that wrote it, "
            "or run into another folder"
        )
    return about


def check_size(path: Path, limit: int = LARGEST) -> None:
    """Raise a `ValueError` if a compressed file holds more than `limit` bytes. Small files cannot, and are not read."""
    if path.stat().st_size * BEST_COMPRESSION <= limit:
        return
    size = 0
    with gzip.open(path, "rb") as file:
        while part := file.read(1 << 20):
            if (size := size + len(part)) > limit:
                raise ValueError(f"more than {limit} bytes")


def read_rows(path: Path) -> list[Row]:
    """Read all rows of a record file; a damaged file or one of another format raises a UserError."""
    read_about(path)
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            file.readline()
            columns, *lines = csv.reader(file)
        if tuple(columns) == COLUMNS:
            return [(a, b, c, d, e, float(value or "nan")) for a, b, c, d, e, value in lines]
    except DAMAGE as error:
        raise _damaged(path, error) from None
    raise UserError(f"{path} has other columns than {', '.join(COLUMNS)}; remove it and run again")


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path} is not a record of this benchmark ({error.__class__.__name__}); remove it and run the same "
        "benchmark again, which repeats this scoring only"
    )


def write_wide(path: Path, records: Iterable[tuple[Mapping[str, Any], Sequence[Row]]]) -> int:
    """Write a csv for people: one line per image and region with all metrics; return the number of lines.

    Volumes, if any, have lines of their own, and a column for each of their metrics.
    """
    records = list(records)
    found = {row[4] for _, rows in records for row in rows}
    usual = CLASS_METRICS if "accuracy" in found else METRICS
    metrics = (*usual, *(metric for metric in VOLUME_METRICS if metric in found))
    lines = [line for about, rows in records for line in _wide(about, rows, metrics)]
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("site", "case", "region", *SETTING, *metrics))
        writer.writerows(lines)
    return len(lines)


def _wide(about: Mapping[str, Any], rows: Sequence[Row], metrics: Sequence[str]) -> Iterator[list[Any]]:
    """Yield one line per image and region, in the order of the rows; a classification has no regions."""
    images: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for _, site, case, region, metric, value in rows:
        if case:
            images.setdefault((site, case), {}).setdefault(region, {})[metric] = value
    setting = {**about, "method": label_of(about)}
    for (site, case), regions in images.items():
        common = regions.pop("", {})
        for region, values in (regions or {"": common}).items():
            measured = {**common, **values}
            numbers = [as_text(measured.get(metric, float("nan"))) for metric in metrics]
            yield [site, case, region, *(setting[name] for name in SETTING), *numbers]
