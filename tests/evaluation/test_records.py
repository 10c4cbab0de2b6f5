import csv
import gzip

import pytest

from ttdg.errors import UserError
from ttdg.evaluation.evaluate import Evaluation
from ttdg.evaluation.records import read_about, read_rows, write_rows, write_wide
from ttdg.report.terminal import scores_table, summarise


def an_evaluation(method="source", dice=(0.5, 1.0), site="east"):
    rows = []
    for case, value in zip("ab", dice, strict=True):
        for region in ("disc", "cup"):
            rows += [
                (site, site, case, region, "dice", value),
                (site, site, case, region, "structure", 0.25),
            ]
        rows.append((site, site, case, "", "seconds", 0.5))
    rows += [(site, "", "", region, "alignment_max", 0.75) for region in ("disc", "cup")]
    about = {"site": site, "method": method, "stream": "online", "batch": 4, "seed": 0, "images": 2}
    return Evaluation(about, rows)


def test_rows_and_metadata_survive_the_disk(tmp_path):
    written = an_evaluation()
    write_rows(tmp_path / "r.csv.gz", written.about, written.rows)
    assert read_rows(tmp_path / "r.csv.gz") == list(written.rows)
    assert read_about(tmp_path / "r.csv.gz").items() >= written.about.items()


def test_equal_rows_give_equal_bytes(tmp_path):
    for name in "ab":
        write_rows(tmp_path / name, an_evaluation().about, an_evaluation().rows)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_damaged_record_is_refused_in_words(tmp_path):
    (tmp_path / "r.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match="is not a record of this benchmark"):
        read_about(tmp_path / "r.csv.gz")
    (tmp_path / "r.csv.gz").write_bytes(gzip.compress(b'#{"format": 99}\n'))
    with pytest.raises(UserError, match="record format 99"):
        read_about(tmp_path / "r.csv.gz")


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-20], lambda b: b[:200] + b"!" * 30 + b[230:], lambda b: b""]
)
def test_a_record_with_damaged_rows_is_refused_in_words(tmp_path, damage):
    path = tmp_path / "r.csv.gz"
    write_rows(path, an_evaluation().about, an_evaluation().rows)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match="is not a record of this benchmark"):
        read_rows(path)


def test_the_csv_for_people_has_one_line_per_image_and_region(tmp_path):
    one = an_evaluation()
    assert write_wide(tmp_path / "r.csv", [(one.about, one.rows)]) == 4
    with (tmp_path / "r.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["case"], line["region"], line["dice"]) for line in lines] == [
        ("a", "disc", "0.5"), ("a", "cup", "0.5"), ("b", "disc", "1.0"), ("b", "cup", "1.0")]  # fmt: skip
    assert {(line["method"], line["batch"], line["seconds"], line["hd95"]) for line in lines} == {
        ("source", "4", "0.5", "")
    }


def test_a_missed_structure_counts_in_the_mean():
    (row,) = summarise([an_evaluation(dice=(1.0, 0.0))])
    assert row.dice == 50


def test_tables_are_functions_of_records():
    rows = summarise([an_evaluation("source"), an_evaluation("tent", (1.0, 1.0))])
    assert [(row.method, row.images, row.dice) for row in rows] == [("source", 2, 75.0), ("tent", 2, 100.0)]
    assert rows[0].by_region == {"disc": 75.0, "cup": 75.0}
    assert (rows[0].alignment, rows[0].structure, rows[0].milliseconds) == (75.0, 25.0, 500.0)
    assert scores_table(rows, "title").row_count == 2
    assert scores_table(rows, "title").caption is None
    rebuilt = scores_table(summarise([an_evaluation("tasd-r")]), "title")
    assert rebuilt.caption == "tasd-r is a reconstruction"
