"""Tables are functions of records: made by hand here, so that every number can be checked by hand."""

import json
import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from ttdg.adaptation import METHODS
from ttdg.bench.jobs import Scoring
from ttdg.bench.results import pack_run, read_table, select_experiments
from ttdg.bench.run import run_jobs
from ttdg.bench.run_file import read_run
from ttdg.errors import UserError
from ttdg.evaluation.records import write_rows
from ttdg.report.aggregate import dice_differences, image_dice
from ttdg.report.comparison import report_tables
from ttdg.report.formats import to_markdown
from ttdg.report.leaderboard import build_leaderboards, write_leaderboard
from ttdg.report.write import insert_tables, write_report

ABOUT = {"images": 2, "batches": 1, "forwards": 2, "backwards": 1, "adapting_seconds": 0.5, "all_seconds": 1.0,
         "peak_bytes": 2**20, "threads": 1}  # fmt: skip


@pytest.fixture
def by_hand(started, place):
    """Two images a target; `source` scores 0.5 and 0.7, `norm` 0.1 more at seed 0 and 0.3 more at seed 1."""
    run = started(seeds=[0, 1])
    for key, job in run.jobs.items():
        if isinstance(job, Scoring):
            gain = 0.0 if job.method == "source" else 0.1 + 0.2 * job.seed
            target = job.targets[0].name
            rows = [
                (target, target, case, "disc", "dice", dice + gain) for case, dice in (("a", 0.5), ("b", 0.7))
            ]
            rows += [(target, target, case, "", "seconds", 0.25) for case in "ab"]
            rows += [(target, "", "", "disc", "alignment_max", 0.9)]
            rows += [
                (target, target, "a", "disc", "instance_dice", 0.5),
                (target, target, "a", "disc", "instances", 2.0),
            ]
            rows += [
                (target, target, "b", "disc", "instance_dice", 1.0),
                (target, target, "b", "disc", "instances", 1.0),
            ]
            rows += [(target, target, "c", "disc", "instance_dice", float("nan"))]
            rows += [(target, target, "c", "disc", "instances", 0.0)]
            write_rows(place.record(key), ABOUT | {"key": key}, rows)
    return place.run


def cells(view, row):
    found = next(line for line in view.rows if line[0].text == row)
    return {name: cell.text for name, cell in zip(view.header, found, strict=True)}


def test_a_cell_is_mean_and_spread_over_seeds_and_the_best_is_marked(by_hand):
    dice = report_tables(read_table(by_hand))[0]
    assert dice.header == ("method", "access", "east", "south", "west", "mean")
    means = dict.fromkeys(("east", "south", "west", "mean"), "60.0 ± 0.0")
    assert cells(dice, "source") == {"method": "source", "access": "source-free", **means}
    assert cells(dice, "norm")["mean"] == "80.0 ± 14.1"
    assert [cell.best for cell in dice.rows[1]] == [False, False, True, True, True, True]
    assert not any(cell.best for cell in dice.rows[0])


def test_the_comparison_says_gain_harm_and_cost(by_hand):
    table = report_tables(read_table(by_hand))[-1]
    row = cells(table, "norm")
    assert row["Δ Dice"] == "+20.00"
    assert row["images harmed, %"] == "0.0"
    assert row["targets worse"] == "0 of 3"
    assert "p, transfers" not in row  # of three transfers it is at least 0.25
    assert row["ms/image"] == "250.0"
    assert (row["forward calls/batch"], row["backward calls/batch"], row["peak MB"]) == ("2.0", "1.0", "1")
    assert cells(table, "source")["Δ Dice"] == ""


def test_a_method_that_had_to_be_reconstructed_is_called_so_under_every_table(by_hand, tmp_path, monkeypatch):
    table = read_table(by_hand)
    assert not any("reconstruction" in view.note for view in report_tables(table))
    assert METHODS["tasd-r"].paper.startswith("reconstructed")
    monkeypatch.setitem(METHODS, "norm", METHODS["tasd-r"])
    assert all("norm is a reconstruction" in view.note for view in report_tables(table))
    write_leaderboard([by_hand], tmp_path / "board")
    assert "norm is a reconstruction" in (tmp_path / "board" / "leaderboard.md").read_text()


def test_every_image_is_compared_with_itself_under_the_same_model(by_hand):
    paired = dice_differences(image_dice(read_table(by_hand)), "source").filter(pl.col("method") == "norm")
    assert len(paired) == 2 * 3 * 2
    assert np.allclose(paired.sort("seed")["difference"], [10] * 6 + [30] * 6, atol=1e-4)


def test_a_job_without_records_leaves_the_table_open_and_the_rest_stands(by_hand):
    run = read_table(by_hand).run
    key = next(k for k, j in run.jobs.items() if isinstance(j, Scoring) and j.method == "norm")
    (by_hand / "records" / f"{key}.csv.gz").unlink()
    dice = report_tables(read_table(by_hand))[0]
    assert cells(dice, "source")["mean"] == "60.0 ± 0.0"
    assert len(dice.rows) == 2


def test_the_instance_score_is_weighted_by_instances_and_never_called_dice(by_hand):
    found = report_tables(read_table(by_hand))
    (named,) = [view for view in found if "instance-only" in view.title]
    assert "not Dice" in named.title
    assert cells(named, "source")["east"] == "66.7 ± 0.0"
    assert sum(re.match(r"main: Dice \(", view.title) is not None for view in found) == 1


def test_the_page_is_one_file_with_tables_plots_and_pictures(finished, tmp_path):
    folder, _ = finished
    table = read_table(folder)
    means = image_dice(table).group_by("method").agg(pl.col("dice").mean()).sort("dice")
    assert means["dice"][0] < means["dice"][-1]
    best = replace(table, run=replace(table.run, baseline=means["method"][-1]))  # so that something is lost
    files = write_report(best, folder, tmp_path, 60.0)
    assert [path.name for path in files] == ["tables.md", "tables.tex", "tables.csv", "report.html"]
    page = files[3].read_text()
    assert page.count("data:image/png;base64,") >= 2 + 1  # two plots, and at least one worst case drawn
    assert not re.search(r"""(src|href)=["']?http""", page)
    assert "data-v=" in page


def test_a_packed_run_gives_the_same_tables_and_names_no_folder(finished, tmp_path):
    folder, _ = finished
    table = read_table(folder)
    pack_run(table, tmp_path)
    again = read_table(tmp_path)
    assert to_markdown(report_tables(again)) == to_markdown(report_tables(table))
    assert again.run.data == ""
    assert str(folder) not in "".join(path.read_text(errors="replace") for path in tmp_path.glob("*.json"))


def test_a_report_of_one_experiment_is_that_part_of_the_whole(started, place, inline):
    pair = ["source", "norm"]
    run = started({"name": "one", "protocol": "leave-one-out", "targets": ["west"], "methods": pair},
                  {"name": "two", "protocol": "leave-one-out", "targets": ["east"], "methods": pair})  # fmt: skip
    run_jobs(dict(run.jobs), place, lambda: inline)
    table = read_table(place.run)
    part = select_experiments(table, ["two"])
    assert len(part.run.jobs) == 3
    assert to_markdown(report_tables(part)) in to_markdown(report_tables(table))
    with pytest.raises(UserError, match="did you mean 'two'"):
        select_experiments(table, ["tow"])


def test_tables_go_between_their_marks_and_nothing_else_changes(by_hand, tmp_path):
    text = tmp_path / "results.md"
    text.write_text("before\n<!-- ttdg report t -->\nold\n<!-- end of ttdg report t -->\nafter\n")
    insert_tables(text, "t", to_markdown(report_tables(read_table(by_hand))))
    once = text.read_text()
    assert once.startswith("before\n<!-- ttdg report t -->\n\n**main: Dice")
    assert once.endswith("<!-- end of ttdg report t -->\nafter\n")
    assert "old" not in once
    insert_tables(text, "t", to_markdown(report_tables(read_table(by_hand))))
    assert text.read_text() == once
    with pytest.raises(UserError, match="must contain the lines <!-- ttdg report other -->"):
        insert_tables(text, "other", "")


def test_the_leaderboard_ranks_and_says_what_is_known(by_hand, tmp_path):
    table = read_table(by_hand)
    pack_run(replace(table, run=replace(table.run, name="my run")), tmp_path / "records" / "mine")
    text, page = write_leaderboard([tmp_path / "records"], tmp_path / "out")
    lines = [line for line in text.read_text().splitlines() if line.startswith("| ")]
    assert lines[1].startswith("| norm | 1 | **80.0 ± 14.1** | +20.00")
    assert lines[2].startswith("| source | control | 60.0 ± 0.0 |")
    assert "## discs: source-free, online" in text.read_text()
    assert "not verified" in text.read_text()
    assert "my run" in page.read_text()
    with pytest.raises(UserError, match="no records under"):
        write_leaderboard([tmp_path / "out"], tmp_path / "out")


def test_a_row_without_a_transfer_has_no_mean_and_no_rank(by_hand, place):
    run = read_run(by_hand)
    target = next(job.targets[0].name for job in run.jobs.values() if isinstance(job, Scoring))
    for key, job in run.jobs.items():
        if isinstance(job, Scoring) and job.method == "norm" and job.targets[0].name == target:
            place.record(key).unlink()
    assert cells(report_tables(read_table(by_hand))[0], "norm")["mean"] == "–"
    (board,) = build_leaderboards([by_hand])
    assert [[cell.text for cell in row[:3]] for row in board.views[0].rows] == [
        ["source", "control", "60.0 ± 0.0"], ["norm", "partial", "–"],
    ]  # fmt: skip
    assert "partial: lacks a transfer of this table" in board.views[0].note


def test_a_torn_record_is_named(by_hand):
    path = next((by_hand / "records").glob("*.gz"))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UserError, match=path.name):
        read_table(by_hand)


def test_a_run_of_another_format_is_refused_in_words(by_hand):
    fields = json.loads((by_hand / "run.json").read_text())
    (by_hand / "run.json").write_text(json.dumps(fields | {"format": 0}))
    with pytest.raises(UserError, match="made with record format 0, this ttdg has 1"):
        read_table(by_hand)
    with pytest.raises(UserError, match="no run at"):
        read_table(by_hand / "nowhere")


def test_html_in_the_name_of_a_run_is_text_on_the_leaderboard(by_hand, tmp_path):
    table = read_table(by_hand)
    pack_run(replace(table, run=replace(table.run, name="<script>x</script>")), tmp_path / "records")
    for path in write_leaderboard([tmp_path / "records"], tmp_path / "out"):
        assert "<script>x" not in path.read_text()
        assert "&lt;script>x" in path.read_text() or "&lt;script&gt;x" in path.read_text()
