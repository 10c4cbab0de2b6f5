"""Damaged and incomplete records: the benchmark makes them again, and reports name them in one sentence."""

import gzip
import json
import shutil

import pytest
from typer.testing import CliRunner

from ttdg.bench import Scoring, read_run, run_jobs
from ttdg.bench.record_check import record_fault
from ttdg.bench.results import pack_run, read_table
from ttdg.bench.verification.rerun import verify_run
from ttdg.cli import app
from ttdg.errors import UserError
from ttdg.evaluation.records import read_about, read_rows, write_rows
from ttdg.report.leaderboard import write_leaderboard


def cut(path):
    path.write_bytes(path.read_bytes()[:-200])


def flip_first_bits(path):
    """Damage the compressed metadata line, which zlib reports as an error of its own kind."""
    data = bytearray(path.read_bytes())
    data[12:40] = bytes(255 - byte for byte in data[12:40])
    path.write_bytes(bytes(data))


def drop_images(path):
    """A well-formed file that lacks the rows of all images but three."""
    about = {name: value for name, value in read_about(path).items() if name != "format"}
    names = sorted({row[2] for row in read_rows(path)})[:4]
    write_rows(path, about, [row for row in read_rows(path) if row[2] in names])


def drop_all_rows(path):
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(lines[:2])))


def empty(path):
    path.write_bytes(b"")


DAMAGES = [cut, flip_first_bits, drop_images, drop_all_rows, empty]


@pytest.fixture(params=DAMAGES, ids=lambda damage: damage.__name__)
def damaged(request, finished, tmp_path):
    """A copy of a finished run with one damaged record: (folder, record)."""
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    record = sorted((folder / "records").glob("*.gz"))[3]
    request.param(record)
    return folder, record


def test_a_complete_record_has_no_fault(finished):
    assert {record_fault(path) for path in (finished[0] / "records").glob("*.gz")} == {None}


def test_a_damaged_record_has_a_fault_that_names_it(damaged):
    assert record_fault(damaged[1]).startswith(damaged[1].name)


@pytest.mark.parametrize(
    "use",
    [read_table, verify_run, lambda folder: write_leaderboard([folder], folder / "board")],
    ids=["report", "verify", "leaderboard"],
)
def test_reading_a_damaged_record_is_one_sentence_that_names_it(damaged, use):
    folder, record = damaged
    with pytest.raises(UserError, match=record.name) as error:
        use(folder)
    assert "\n" not in str(error.value)


def test_the_benchmark_scores_a_damaged_record_again_and_says_so(finished, damaged, place, here, discs):
    from dataclasses import replace

    folder, record = damaged
    run = read_run(folder)
    again = replace(place, run=folder, data=discs, models=folder / "models")
    inline = here(again)
    outcome = run_jobs(dict(run.jobs), again, lambda: inline)
    key = record.name.split(".")[0]
    assert inline.order == [key]
    assert outcome.damaged.keys() == {key}
    assert outcome.found == len(run.jobs) - 1
    assert outcome.done == len(run.jobs)
    before = [row for row in read_rows(finished[0] / "records" / record.name) if row[4] != "seconds"]
    assert str([row for row in read_rows(record) if row[4] != "seconds"]) == str(before)


def test_the_command_says_which_record_was_damaged(monkeypatch, tmp_path):
    from ttdg.bench import RunOutcome
    from ttdg.bench import run as module

    outcome = RunOutcome(2, 1, damaged={"a": "a.csv.gz cannot be read (EOFError)"})
    monkeypatch.setattr(module, "run_benchmark", lambda *_: outcome)
    monkeypatch.setattr("ttdg.bench.run_benchmark", lambda *_: outcome)
    result = CliRunner().invoke(app, ["bench", "t.yaml", "-o", str(tmp_path / "run")])
    assert result.exit_code == 0
    assert "damaged record: a.csv.gz cannot be read (EOFError); it was scored again" in result.output


def lack_rows(folder):
    path = folder / "records.csv.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(lines[:-7])))


def cut_rows(folder):
    cut(folder / "records.csv.gz")


def lack_metadata(folder):
    (folder / "about.json").write_text("[]")


def name_unknown_jobs(folder):
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps(about | {"0" * 16: {}}))


def declare_no_images(folder):
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps({key: {} for key in about}))


def lack_a_job(folder):
    fields = json.loads((folder / "run.json").read_text())
    scoring = next(key for key, job in read_run(folder).jobs.items() if isinstance(job, Scoring))
    del fields["jobs"][scoring]
    (folder / "run.json").write_text(json.dumps(fields))


@pytest.mark.parametrize(
    "damage", [lack_rows, cut_rows, lack_metadata, name_unknown_jobs, declare_no_images, lack_a_job]
)
def test_damaged_packed_records_are_refused_in_one_sentence(finished, tmp_path, damage):
    pack_run(read_table(finished[0]), tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=r"records\.csv\.gz|about\.json|run\.json") as error:
        read_table(tmp_path)
    assert "\n" not in str(error.value)
