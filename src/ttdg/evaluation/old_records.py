"""Records first, tables later: one row per image and region; every table is a pure function of them."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ttdg.errors import UserError
from ttdg.files import atomic_file

Curves = Float[np.ndarray, "n t"]


@dataclass(frozen=True)
class Record:
    """One image's scores in one region. Every image counts: a missed structure has Dice 0, it does not vanish."""

    site: str
    case: str
    region: str
    method: str
    stream: str
    batch: int
    seed: int
    dice: float
    alignment: float  # E_φ of this image at threshold 0.5; E_φ^max needs the curves of all images
    structure: float  # S_α
    hd95: float  # pixels of the network's input; NaN where surfaces were not measured
    assd: float
    seconds: float  # of the batch's answer, shared equally among its images


@dataclass(frozen=True)
class Records:
    """Rows, and beside each row its E_φ curve over 256 thresholds."""

    rows: tuple[Record, ...]
    curves: Curves

    def where(self, **equal: str | int) -> "Records":
        keep = [all(getattr(row, name) == value for name, value in equal.items()) for row in self.rows]
        rows = tuple(row for row, kept in zip(self.rows, keep, strict=True) if kept)
        return Records(rows, self.curves[np.array(keep, bool)])

    def values(self, name: str) -> list[str]:
        """The distinct values of a field, in order of appearance."""
        return list(dict.fromkeys(getattr(row, name) for row in self.rows))

    def mean(self, name: str) -> float:
        return float(np.mean([getattr(row, name) for row in self.rows]))

    def max_alignment(self) -> float:
        """E_φ^max: the curve averaged over images and then maximised, region by region, then averaged."""
        regions = [
            self.where(region=region).curves.mean(0, dtype=np.float64).max()
            for region in self.values("region")
        ]
        return float(np.mean(regions))


def joined(parts: Sequence[Records]) -> Records:
    curves = [part.curves for part in parts] or [np.zeros((0, 256), np.float16)]
    return Records(tuple(row for part in parts for row in part.rows), np.concatenate(curves))


def write(folder: Path, records: Records) -> None:
    """`records.csv` for people and tools, `curves.npy` (float16) for E_φ^max."""
    with atomic_file(folder / "curves.npy") as temporary, temporary.open("wb") as file:
        np.save(file, records.curves.astype(np.float16))
    with (
        atomic_file(folder / "records.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        write_rows(file, [asdict(row) for row in records.rows], [field.name for field in fields(Record)])


def write_rows(file: object, rows: Iterable[Mapping[str, object]], names: Sequence[str]) -> None:
    writer = csv.DictWriter(file, names, lineterminator="\n")  # type: ignore[arg-type]
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


def read(folder: Path) -> Records:
    if not (folder / "records.csv").is_file():
        raise UserError(f"no records at {folder}: `ttdg evaluate --out {folder}` writes them")
    with (folder / "records.csv").open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != tuple(field.name for field in fields(Record)):
            raise UserError(
                f"{folder / 'records.csv'} was written by another version of ttdg; evaluate again"
            )
        rows = tuple(Record(**{f.name: f.type(row[f.name]) for f in fields(Record)}) for row in reader)  # type: ignore[operator,misc]
    curves = np.load(folder / "curves.npy", allow_pickle=False).astype(np.float32)
    if len(curves) != len(rows):
        raise UserError(f"{folder} holds {len(rows)} rows and {len(curves)} curves; evaluate again")
    return Records(rows, curves)
