"""Verification: sampled rows run again, compared, and stored beside the records."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from ttdg.bench.jobs import Scoring, Training
from ttdg.bench.results import pack_run, read_table
from ttdg.bench.run import run_jobs
from ttdg.bench.run_file import read_run, write_run
from ttdg.bench.verification.outcome import verification_state, verified_records
from ttdg.bench.verification.rerun import verify_run
from ttdg.cli import app
from ttdg.errors import UserError
from ttdg.evaluation.records import read_about, read_rows, write_rows
from ttdg.report.leaderboard import write_leaderboard
from ttdg.report.verified import verification_tables
from ttdg.report.write import pack_verification


def test_verification_agrees_bit_for_bit_and_notices_a_changed_value(finished, tmp_path):
    folder, run = finished
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    result = verify_run(copy, rows=8)
    assert result.agrees
    assert result.exact
    assert "agree bit for bit" in verification_state(copy, read_table(copy))
    key = next(k for k, j in run.jobs.items() if isinstance(j, Scoring))
    path = copy / "records" / f"{key}.csv.gz"
    about = {k: v for k, v in read_about(path).items() if k != "format"}
    rows = [(*row[:5], row[5] + 1e-3 if row[4] == "dice" else row[5]) for row in read_rows(path)]
    write_rows(path, about, rows)
    table = read_table(copy)
    left = len(result.records.keys() - {key})
    assert 0 < left < len(table.about)
    assert verification_state(copy, table) == (
        f"verified in part: {left} of {len(table.about)} scorings ran again and agree; the others are not verified"
    )
    every = replace(table, rows=table.rows.with_columns(pl.col("value") * 0.5))
    assert verification_state(copy, every) == "not verified: the records have changed since"
    wrong = verify_run(copy, rows=10_000)
    assert not wrong.agrees
    assert wrong.rows - wrong.equal == 10
    assert "NOT verified" in wrong.in_words()


def test_what_was_verified_travels_with_a_pack_of_the_same_rows_alone(finished, tmp_path):
    folder, _ = finished
    copy, packed = tmp_path / "run", tmp_path / "packed"
    shutil.copytree(folder, copy)
    assert pack_verification(read_table(copy), [copy], packed) == []
    verify_run(copy, rows=4)
    told = CliRunner().invoke(app, ["report", str(copy), "--pack", str(packed), "--pictures", "0"])
    assert told.exit_code == 0, told.exception
    assert str(packed / "verification.json") in told.output.replace("\n", "")
    assert verification_state(packed, read_table(packed)) == verification_state(copy, read_table(copy))
    (text, _) = write_leaderboard([packed], tmp_path / "board")
    assert "verified: 4 rows" in text.read_text()
    table = read_table(copy)
    fewer = replace(table, rows=table.rows.filter(pl.col("metric").cast(pl.String) != "dice"))
    assert pack_verification(fewer, [copy], tmp_path / "fewer") == []


def test_other_versions_owe_a_tolerance_and_not_bits(finished, tmp_path):
    folder, run = finished
    pack_run(read_table(folder), tmp_path / "packed")
    about = json.loads((tmp_path / "packed" / "about.json").read_text())
    for line in about.values():
        line |= {"versions": {"torch": "0"}, "code": "other"}
    (tmp_path / "packed" / "about.json").write_text(json.dumps(about))
    result = verify_run(tmp_path / "packed", rows=3, data=Path(run.data), models=folder / "models")
    assert not result.exact
    assert result.agrees
    assert "within 0.02" in result.in_words()
    assert result.in_words().endswith("the code has changed since these records were made")


def test_verifying_packed_records_leaves_neither_models_nor_parts_beside_them(
    started, place, inline, discs, tmp_path
):
    experiment = {"name": "main", "protocol": "leave-one-out", "targets": ["west"], "methods": ["nc-ttt"]}
    run = started(experiment, parts={"nc-ttt": {"steps": 1}})
    assert not run_jobs(dict(run.jobs), place, lambda: inline).failed
    written = {path.name for path in pack_run(read_table(place.run), tmp_path / "packed")}
    result = verify_run(tmp_path / "packed", 1, data=discs)
    assert result.retrained == 2
    assert {path.name for path in (tmp_path / "packed").iterdir()} == {*written, "verification.json"}


def test_a_folder_of_benchmarks_will_do_for_the_data(finished, tmp_path, monkeypatch):
    folder, table = finished[0], read_table(finished[0])
    pack_run(table, tmp_path / "packed")
    name = next(job.benchmark["name"] for job in table.run.jobs.values() if isinstance(job, Training))
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / name).symlink_to(Path(table.run.data).resolve())
    assert verify_run(tmp_path / "packed", 2, data=tmp_path / "all", models=folder / "models").agrees
    monkeypatch.setenv("TTDG_DATA", str(tmp_path / "all"))
    assert verify_run(tmp_path / "packed", 2, models=folder / "models").agrees


def test_changed_images_are_named_instead_of_compared(finished, tmp_path):
    folder, table = finished[0], read_table(finished[0])
    data = shutil.copytree(table.run.data, tmp_path / "data")
    image = min((data / "east" / "images").iterdir())
    image.write_bytes(min((data / "south" / "images").iterdir()).read_bytes())
    copy = shutil.copytree(folder, tmp_path / "run")
    with pytest.raises(UserError, match=r"the images or masks of east in .* are not those of the records"):
        verify_run(copy, rows=10_000, data=data)
    assert not (copy / "verification.json").exists()


def test_data_that_are_gone_are_asked_for(finished, tmp_path, monkeypatch):
    monkeypatch.delenv("TTDG_DATA", raising=False)
    pack_run(read_table(finished[0]), tmp_path)
    with pytest.raises(UserError, match="no benchmark folder was named; name one, or set TTDG_DATA"):
        verify_run(tmp_path)


@pytest.fixture
def foreign(finished, tmp_path):
    """A copy of a run without models, whose run.json names a models folder elsewhere."""
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(finished[0], folder, ignore=shutil.ignore_patterns("models"))
    write_run(folder, replace(read_run(folder), models=str(elsewhere)))
    return folder, elsewhere


def test_models_are_not_trained_into_a_folder_that_only_run_json_names(foreign):
    folder, elsewhere = foreign
    with pytest.raises(UserError, match="outside the run's folder; name the models folder explicitly"):
        verify_run(folder, rows=1)
    assert not elsewhere.exists()


def test_missing_models_are_trained_into_the_folder_that_the_user_names(foreign):
    folder, elsewhere = foreign
    result = verify_run(folder, rows=1, models=elsewhere)
    assert result.retrained == 1
    assert [path.name for path in elsewhere.glob("*/model.json")] == ["model.json"]


def test_a_job_that_does_not_match_its_key_is_refused(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    plan = read_run(tmp_path / "run")
    jobs = {key: replace(job, seed=9) if isinstance(job, Scoring) else job for key, job in plan.jobs.items()}
    write_run(tmp_path / "run", replace(plan, jobs=jobs))
    with pytest.raises(UserError, match=r"does not match its key: run\.json was changed"):
        verify_run(tmp_path / "run", rows=1)


def test_records_that_ran_again_are_marked_until_they_change_and_later_calls_add_marks(finished, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(finished[0], copy)
    first = verify_run(copy, rows=2)
    methods = {read_run(copy).jobs[key].method for key in first.records}
    assert methods == {"source", "norm"}, "rows of different methods come first"
    second = verify_run(copy, rows=2, seed=5)
    table = read_table(copy)
    marks = verified_records(copy, table)
    assert marks == second.records
    assert marks.keys() >= first.records.keys()
    assert all(mark.agrees and mark.largest == 0 for mark in marks.values())
    (shown,) = verification_tables(table)
    assert {row[0].text for row in shown.rows} == {"source", "norm"}
    assert {row[-1].text for row in shown.rows} == {"verified"}
    changed = min(marks)
    scores = (
        pl.when(pl.col("job").cast(pl.String) == changed)
        .then(0.5)
        .otherwise(pl.col("value"))
        .cast(pl.Float32)
    )
    other = replace(table, rows=table.rows.with_columns(scores.alias("value")))
    assert verified_records(copy, other).keys() == marks.keys() - {changed}


def test_a_record_that_differs_is_marked_as_such_and_shown(finished, tmp_path):
    copy, (_, run) = tmp_path / "run", finished
    shutil.copytree(finished[0], copy)
    key = next(k for k, j in run.jobs.items() if isinstance(j, Scoring) and j.method == "norm")
    path = copy / "records" / f"{key}.csv.gz"
    about = {k: v for k, v in read_about(path).items() if k != "format"}
    write_rows(
        path, about, [(*row[:5], row[5] + 1e-3 if row[4] == "dice" else row[5]) for row in read_rows(path)]
    )
    marks = verify_run(copy, rows=10_000).records
    assert [job for job, mark in marks.items() if not mark.agrees] == [key]
    table = read_table(copy)
    (shown,) = verification_tables(table)
    assert {row[0].text: row[-1].text for row in shown.rows} == {"source": "verified", "norm": "NOT verified"}
    source = next(k for k, j in run.jobs.items() if isinstance(j, Scoring) and j.method == "source")
    fewer = replace(table, rows=table.rows.filter(pl.col("job").cast(pl.String) != source))
    assert f"{len(marks) - 2} of {len(table.about)} scorings ran again and agree, 1 do NOT" in (
        verification_state(copy, fewer)
    )


def test_records_without_a_verification_have_no_table_of_it(finished):
    assert verification_tables(read_table(finished[0])) == []
