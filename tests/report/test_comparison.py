"""What is said under tables of the committed records."""

from pathlib import Path

import pytest

from ttdg.bench.results import read_table
from ttdg.report.comparison import SINGLE_IMAGE_NOTE, report_tables, row_notes

RECORDS = Path(__file__).parents[2] / "docs" / "records" / "fundus-methods"


@pytest.fixture(scope="module")
def table():
    return read_table(RECORDS)


def test_a_method_that_cannot_use_one_image_is_said_so_where_it_got_one(table):
    assert row_notes(table, 1) == {"tasd-r": "is a reconstruction", "universe-literal": SINGLE_IMAGE_NOTE}
    assert row_notes(table, 4) == {"tasd-r": "is a reconstruction"}


def test_it_is_said_under_the_tables_of_that_batch_alone(table):
    notes = {
        view.title: f"universe-literal {SINGLE_IMAGE_NOTE}" in view.note
        for view in report_tables(table)
        if "; batch " in view.title
    }
    assert set(notes.values()) == {True, False}
    assert all(said is ("batch 1)" in title) for title, said in notes.items())
