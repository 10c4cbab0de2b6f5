"""The published records in docs/records can be read, tabulated, and their job keys recomputed."""

from pathlib import Path

import pytest

from ttdg.bench.jobs import Scoring, from_dict, key_of, required_jobs, to_dict
from ttdg.bench.results import read_table
from ttdg.report.comparison import report_tables
from ttdg.report.formats import to_csv, to_latex, to_markdown

RECORDS = Path(__file__).parents[2] / "docs" / "records"
RUNS = (
    "fundus",
    "fundus-methods",
    "gate-cpu",
    "learn-fundus",
    "learn-fundus-eight",
    "learn-polyp",
    "learn-polyp-eight",
    "literal",
    "literal-cpu",
    "longer-fundus",
    "longer-polyp",
    "methods-cpu",
    "pacs",
    "polyp",
    "polyp-methods",
    "prostate",
    "rivals-cpu",
    "shapes",
    "strong-fundus",
    "strong-polyp",
    "vessels",
)
UNFINISHED = ("learn-fundus-eight", "learn-polyp-eight")  # the GPU time ended before all rows


@pytest.fixture(scope="module", params=RUNS)
def table(request):
    return read_table(RECORDS / request.param)


def test_all_published_runs_are_checked():
    assert tuple(sorted(path.parent.name for path in RECORDS.glob("*/run.json"))) == RUNS


def test_recomputed_job_keys_equal_the_stored_keys(table):
    assert {key: key_of(job) for key, job in table.run.jobs.items()} == {key: key for key in table.run.jobs}
    assert all(key_of(from_dict(to_dict(job))) == key for key, job in table.run.jobs.items())
    assert all(line["key"] == key for key, line in table.about.items())


def test_every_scoring_of_the_plan_has_records_and_its_required_jobs(table):
    planned = {entry.job for entry in table.run.entries}
    recorded = set(table.rows["job"].unique().cast(str))
    assert recorded == table.about.keys()
    assert recorded < planned if table.run.name in UNFINISHED else recorded == planned
    assert all(isinstance(table.run.jobs[key], Scoring) for key in planned)
    assert all(need in table.run.jobs for job in table.run.jobs.values() for need in required_jobs(job))


def test_the_tables_are_rendered_in_every_format(table):
    tables = report_tables(table)
    methods = {entry.label for entry in table.run.entries if entry.job in table.about}
    assert {row[0].text for view in tables for row in view.rows} == methods
    assert to_markdown(tables).count("\n|---") == len(tables)
    assert to_latex(tables).count(r"\begin{tabular}") == len(tables)
    assert to_csv(tables).count("\n") == 1 + sum(len(view.rows) * (len(view.header) - 1) for view in tables)
