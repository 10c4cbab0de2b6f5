"""The images that lose the most Dice against the baseline, found in the records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttdg.bench.results import RunTable, import_polars

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class WorstCase:
    """An image with its Dice in percent and job, for a method and for the baseline."""

    method: str
    target: str
    site: str
    case: str
    dice: float
    baseline: float
    job: str
    baseline_job: str


def find_worst_cases(paired: "pl.DataFrame", baseline: str, count: int = 4) -> list[WorstCase]:
    """Return the largest losses of a table, at most one per image."""
    pl = import_polars()
    lines = paired.filter((pl.col("method") != baseline) & (pl.col("difference") < 0))
    lines = lines.sort("difference").unique(["site", "case"], keep="first")
    fields = ("method", "target", "site", "case", "dice", "baseline", "job", "baseline_job")
    chosen = lines.sort(["difference", "site", "case"]).head(count).select(fields)
    words = chosen.with_columns(pl.col("target", "site", "case").cast(pl.String))
    return [WorstCase(**line) for line in words.iter_rows(named=True)]


def drawing_seconds(table: RunTable, cases: Sequence[WorstCase]) -> float:
    """Estimate the seconds that drawing these cases takes, from the recorded time of their scorings."""
    jobs = {job for case in cases for job in (case.job, case.baseline_job)}
    return float(sum(table.about[job]["all_seconds"] for job in jobs))
