from dataclasses import replace

import numpy as np
import pytest

from ttdg.errors import UserError
from ttdg.evaluation.old_records import Record, Records, read, write
from ttdg.report.terminal import scores_table, summarise


def a_record(case="a", region="disc", method="source", dice=0.5, site="east"):
    return Record(
        site, case, region, method, "online", 4, 0, dice, 0.7, 0.6, float("nan"), float("nan"), 0.01
    )


def some():
    rows = [a_record(case, region, method, dice) for method, dice in (("source", 0.5), ("tent", 0.75))
            for case in "ab" for region in ("disc", "cup")]  # fmt: skip
    curves = np.linspace(0, 1, 256 * len(rows), dtype=np.float16).reshape(len(rows), 256)
    return Records(tuple(rows), curves)


def test_records_survive_the_disk(tmp_path):
    write(tmp_path, some())
    back = read(tmp_path)
    assert [str(row) for row in back.rows] == [str(row) for row in some().rows]
    assert np.array_equal(back.curves, some().curves.astype(np.float32))


def test_the_maximum_is_taken_of_the_mean_curve_not_the_mean_of_maxima():
    curves = np.zeros((2, 256), np.float32)
    curves[0, 10], curves[1, 200] = 1, 1
    assert Records((a_record("a"), a_record("b")), curves).max_alignment() == 0.5


def test_a_missed_structure_counts_in_the_mean():
    rows = (a_record("a", dice=1.0), a_record("b", dice=0.0))
    assert Records(rows, np.zeros((2, 256), np.float32)).mean("dice") == 0.5


def test_tables_are_functions_of_records():
    rows = summarise(some())
    assert [(row.method, row.images, row.dice) for row in rows] == [("source", 2, 50.0), ("tent", 2, 75.0)]
    assert rows[0].by_region == {"disc": 50.0, "cup": 50.0}
    assert scores_table(rows, "title").row_count == 2
    assert scores_table(rows, "title").caption is None
    rebuilt = scores_table([replace(row, method="tasd-r") for row in rows], "title")
    assert rebuilt.caption == "tasd-r is a reconstruction"


def test_records_of_another_format_are_refused_in_words(tmp_path):
    write(tmp_path, some())
    text = (tmp_path / "records.csv").read_text().replace("dice", "jaccard", 1)
    (tmp_path / "records.csv").write_text(text)
    with pytest.raises(UserError, match="another version of ttdg"):
        read(tmp_path)
    with pytest.raises(UserError, match="no records at"):
        read(tmp_path / "nowhere")


def test_rows_without_their_curves_are_refused(tmp_path):
    write(tmp_path, some())
    np.save(tmp_path / "curves.npy", np.zeros((3, 256), np.float16))
    with pytest.raises(UserError, match="8 rows and 3 curves"):
        read(tmp_path)
