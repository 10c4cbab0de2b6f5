"""The images a method made worst, from the records alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttdg.bench.results import SETTING, RunTable, polars

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Worst:
    """One image of one scoring, with the scoring of the baseline beside it."""

    method: str
    target: str
    site: str
    case: str
    dice: float
    baseline: float
    job: str
    baseline_job: str


def worst(paired: "pl.DataFrame", baseline: str, count: int = 4) -> list[Worst]:
    """The largest losses of a table, at most one an image."""
    pl = polars()
    same = [name for name in SETTING if name != "method"]
    jobs = paired.filter(pl.col("method") == baseline).select(
        *same, "target", pl.col("job").alias("baseline_job")
    )
    lines = paired.filter((pl.col("method") != baseline) & (pl.col("difference") < 0))
    lines = (
        lines.join(jobs.unique(), on=[*same, "target"])
        .sort("difference")
        .unique(["site", "case"], keep="first")
    )
    fields = ("method", "target", "site", "case", "dice", "baseline", "job", "baseline_job")
    chosen = lines.sort(["difference", "site", "case"]).head(count).select(fields)
    words = chosen.with_columns(pl.col("target", "site", "case").cast(pl.String))
    return [Worst(**line) for line in words.iter_rows(named=True)]


def cost(table: RunTable, cases: Sequence[Worst]) -> float:
    """Seconds that drawing would take, from what the scorings took."""
    jobs = {job for case in cases for job in (case.job, case.baseline_job)}
    return float(sum(table.about[job]["all_seconds"] for job in jobs))
