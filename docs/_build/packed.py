"""The packed records of `docs/records`. Each run is read once, and its tables are made once, in a build of the site."""

from functools import cache
from pathlib import Path

from ttdg.bench.results import RunTable, read_table
from ttdg.report.comparison import report_tables
from ttdg.report.tables import ReportTable

RECORDS = Path(__file__).parents[1] / "records"


@cache
def run_table(run: str) -> RunTable:
    """The records of a run."""
    return read_table(RECORDS / run)


@cache
def run_reports(run: str) -> tuple[ReportTable, ...]:
    """Every table that `ttdg report` makes of a run."""
    return tuple(report_tables(run_table(run)))
