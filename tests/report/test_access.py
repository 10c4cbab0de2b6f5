"""Tables grouped by access, with controls and post-hoc rows; the numbers are made by hand."""

from dataclasses import replace

import numpy as np
import pytest

from ttdg.adaptation import METHODS
from ttdg.bench.jobs import Scoring
from ttdg.bench.results import read_table
from ttdg.bench.run_file import read_run
from ttdg.evaluation.records import write_rows
from ttdg.report import controls
from ttdg.report.access import ACCESS, RowFacts, job_facts, order_by_access, with_access
from ttdg.report.aggregate import TransferDifferences
from ttdg.report.comparison import report_tables
from ttdg.report.controls import _image_values
from ttdg.report.leaderboard import build_leaderboards
from ttdg.report.tables import Cell, ReportTable

ABOUT = {"images": 2, "batches": 1, "forwards": 2, "backwards": 1, "adapting_seconds": 0.5, "all_seconds": 1.0,
         "peak_bytes": 2**20, "threads": 1}  # fmt: skip
GAINS = {  # label → gain over `source` in points of Dice
    "source": 0.0, "source + flips": 2.0, "norm": 5.0, "norm + flips": 6.0, "nc-ttt": 9.0, "nc-ttt + flips": 9.0,
    "itta": -1.0, "itta + flips": 1.0,
}  # fmt: skip


@pytest.fixture
def run(started, place):
    """Every row gains the same at every image, and half a point more at the second seed."""
    methods = ["source", "norm", "nc-ttt", "itta"]
    experiment = {
        "name": "main",
        "protocol": "leave-one-out",
        "methods": methods,
        "views": ["plain", "flips"],
    }
    plan = started(experiment, seeds=[0, 1])
    labels = {entry.job: entry.label for entry in plan.entries}
    for key, job in plan.jobs.items():
        if isinstance(job, Scoring):
            target = job.targets[0].name
            gain = GAINS[labels[key]] + (0.5 * job.seed if labels[key] != "source" else 0.0)
            rows = [
                (target, target, case, "disc", "dice", dice + gain / 100)
                for case, dice in (("a", 0.5), ("b", 0.7))
            ]
            write_rows(place.record(key), ABOUT | {"key": key}, rows)
    return place.run


def column(view, name):
    place = view.header.index(name)
    return {row[0].text: row[place].text for row in view.rows}


def test_rows_are_grouped_by_access_and_keep_their_order_within_a_group(run):
    for view in report_tables(read_table(run)):
        access = column(view, "access")
        assert list(access) == list(GAINS)
        assert (
            list(access.values())
            == ["source-free"] * 4 + ["source images, post hoc"] * 2 + ["source labels, post hoc"] * 2
        )


def test_the_best_of_an_access_is_marked_and_a_post_hoc_row_never(run):
    dice = report_tables(read_table(run))[0]
    assert [row[0].text for row in dice.rows if any(cell.best for cell in row)] == ["norm + flips"]


def test_every_method_is_compared_with_the_best_control(run):
    against = report_tables(read_table(run))[-1]
    assert "the best control is source + flips" in against.note
    assert column(against, "Δ Dice")["norm"] == "+5.25"
    gains = column(against, "Δ to the best control")
    assert gains == {
        "source": "", "source + flips": "", "norm": "+3.00", "norm + flips": "+4.00", "nc-ttt": "+7.00",
        "nc-ttt + flips": "+7.00", "itta": "-3.00", "itta + flips": "-1.00",
    }  # fmt: skip
    assert column(against, "its 95 % interval over transfers and seeds")["norm"] == "[+3.00, +3.00]"
    low, high = column(against, "95 % interval over transfers and seeds")["norm"].strip("[]").split(", ")
    assert 5.0 <= float(low) < 5.25 < float(high) <= 5.5


def test_a_control_that_is_worse_than_the_baseline_is_not_the_best(run):
    table = read_table(run)
    worse = replace(table, run=replace(table.run, baseline="norm + flips"))
    against = report_tables(worse)[-1]
    assert "Δ to the best control" not in against.header
    assert "best control" not in against.note


def test_a_test_that_cannot_be_significant_is_replaced_by_a_sentence(run):
    against = report_tables(read_table(run))[-1]
    assert "p, transfers" not in against.header  # three transfers: p is at least 0.25, times seven methods
    assert "no test over transfers: with 3, no p below 0.05 remains" in against.note


def test_a_column_of_corrected_p_that_is_1_everywhere_is_replaced_by_a_count(run, monkeypatch):
    monkeypatch.setattr(controls, "SIGNIFICANT", 2.0)
    against = report_tables(read_table(run))[-1]
    assert "p, transfers" not in against.header
    assert "none of 7 methods differs (every p is 1.000)" in against.note


def test_the_leaderboard_has_a_section_for_each_access_with_the_controls_in_it(run):
    boards = build_leaderboards([run])
    assert [(board.benchmark, board.access, board.stream) for board in boards] == [
        ("discs", "source-free", "online"), ("discs", "source images", "online"), ("discs", "source labels", "online"),
    ]  # fmt: skip
    first, *others = (board.views[0] for board in boards)
    assert column(first, "rank") == {
        "norm + flips": "1", "norm": "2", "source + flips": "control", "source": "control",
    }  # fmt: skip
    assert [row[0].text for row in first.rows if row[2].best] == ["norm + flips"]
    for view in others:
        assert set(column(view, "rank").values()) == {"control", "post hoc"}
        assert not any(cell.best for row in view.rows for cell in row)


def test_a_seed_that_is_missing_at_a_hard_target_moves_no_rank(run, place):
    """Without its record there, `norm` has the largest mean, but no other gain than before."""
    plan = read_run(run)
    hard = min(job.targets[0].name for job in plan.jobs.values() if isinstance(job, Scoring))
    for entry in plan.entries:
        job = plan.jobs[entry.job]
        if isinstance(job, Scoring) and job.targets[0].name == hard:
            if (entry.label, job.seed) == ("norm", 0):
                place.record(entry.job).unlink()
                continue
            gain = GAINS[entry.label] + (0.5 * job.seed if entry.label != "source" else 0.0)
            rows = [(hard, hard, case, "disc", "dice", 0.1 + gain / 100) for case in "ab"]
            write_rows(place.record(entry.job), ABOUT | {"key": entry.job}, rows)
    view = build_leaderboards([run])[0].views[0]
    assert column(view, "rank") == {
        "norm + flips": "1", "norm": "2*", "source + flips": "control", "source": "control",
    }  # fmt: skip
    assert "* lacks seeds of this table" in view.note
    means = {row[0].text: row[2] for row in view.rows}
    assert means["norm"].value == pytest.approx((15.5 + 65.25 + 65.25) / 3)  # hard: seed 1 alone
    assert means["norm"].text == "48.7*"
    assert means["norm + flips"].value == pytest.approx((16.25 + 66.25 + 66.25) / 3)
    dice = report_tables(read_table(run))[0]
    assert "* some seeds of this table are missing" in dice.note
    assert [row[0].text for row in dice.rows if row[-2].best] == ["norm + flips"]
    there = {row[0].text: row[dice.header.index(hard)] for row in dice.rows}
    assert there["norm"].text.endswith("*")
    assert not there["norm"].best
    assert not there["norm + flips"].text.endswith("*")


def test_the_control_is_compared_at_the_transfers_and_seeds_of_the_gain_only(run, place):
    plan = read_run(run)
    entry = next(e for e in plan.entries if e.label == "source + flips" and plan.jobs[e.job].seed == 1)
    place.record(entry.job).unlink()
    against = report_tables(read_table(run))[-1]
    assert column(against, "Δ to the best control")["norm"] == ""
    assert column(against, "Δ Dice")["norm"] != ""


def test_an_image_that_several_source_sites_answer_counts_once_in_tests_over_images():
    one, other = ("a", "x"), ("a", "y")
    parts = [
        TransferDifferences(f"{n} → a", np.array([1.0, value]), np.zeros(1), np.zeros(1), "a", [one, other])
        for n, value in enumerate((2.0, 4.0))
    ]
    (values,) = _image_values(parts).values()
    np.testing.assert_array_equal(values, [1.0, 3.0])


def test_the_gain_is_the_mean_over_seeds_that_scored_different_images(run, place):
    """Seed 1 scores image "a" alone at one target, where `norm` gains 20 more; both seeds have the same weight."""
    plan = read_run(run)
    target = min(job.targets[0].name for job in plan.jobs.values() if isinstance(job, Scoring))
    for entry in plan.entries:
        job = plan.jobs[entry.job]
        if isinstance(job, Scoring) and job.targets[0].name == target and entry.label in ("source", "norm"):
            gain = 0.25 if entry.label == "norm" else 0.0
            rows = [(target, target, "a", "disc", "dice", 0.5 + (gain if job.seed else gain / 5))]
            rows += [] if job.seed else [(target, target, "b", "disc", "dice", 0.5 + gain / 5)]
            write_rows(place.record(entry.job), ABOUT | {"key": entry.job, "images": len(rows)}, rows)
    dice, against = report_tables(read_table(run))[0], report_tables(read_table(run))[-1]
    means = {method: float(text.split()[0]) for method, text in column(dice, "mean").items()}
    assert means["norm"] - means["source"] == pytest.approx(8.5, abs=0.1)
    assert column(against, "Δ Dice")["norm"] == "+8.50"


def test_a_transfer_with_one_image_leaves_no_interval_over_images(run, place):
    assert column(report_tables(read_table(run))[-1], "95 % interval over images")["norm"] == "[+5.25, +5.25]"
    plan = read_run(run)
    target = min(job.targets[0].name for job in plan.jobs.values() if isinstance(job, Scoring))
    for key, job in plan.jobs.items():
        if isinstance(job, Scoring) and job.targets[0].name == target:
            write_rows(
                place.record(key),
                ABOUT | {"key": key, "images": 1},
                [(target, target, "a", "disc", "dice", 0.5)],
            )
    against = report_tables(read_table(run))[-1]
    assert column(against, "95 % interval over images")["norm"] == "–"
    assert column(against, "95 % interval over transfers and seeds")["norm"] != "–"


def a_job(method, **options):
    return Scoring("t", method, options, {}, (), {}, "online", 4, 0)


def test_controls_are_the_source_with_any_views_and_the_judge_that_always_falls_back():
    assert job_facts(a_job("source")).control
    assert job_facts(replace(a_job("source"), views="flips")).control
    assert job_facts(a_job("judge", always="source, both ways")) == RowFacts("source-free", control=True)
    assert job_facts(a_job("judge", always="mean of all")) == RowFacts("source labels")
    assert not job_facts(a_job("norm")).control


def test_a_method_of_an_older_version_comes_last_as_unknown():
    facts = {"old": job_facts(a_job("no-such-method")), "judge": job_facts(a_job("judge"))}
    assert facts["old"].access == "unknown"
    assert order_by_access(["old", "judge"], facts) == ["judge", "old"]
    view = with_access(ReportTable("t", ("method",), ((Cell("old"),), (Cell("judge"),))), facts)
    assert [[cell.text for cell in row] for row in view.rows] == [
        ["judge", "source labels"],
        ["old", "unknown"],
    ]


def test_every_declared_access_has_a_place_in_the_tables():
    assert {method.access for method in METHODS.values()} <= set(ACCESS)


def test_a_method_behind_the_gate_needs_source_labels():
    assert job_facts(a_job("tent")).access == "source-free"
    assert job_facts(replace(a_job("tent"), gate=True)).access == "source labels"
