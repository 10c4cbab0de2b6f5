"""From yaml to a run that can start, and the whole command killed and given again."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from ttdg.bench.prepare import prepare_run
from ttdg.bench.request import RunRequest
from ttdg.bench.run_file import read_run
from ttdg.errors import UserError
from ttdg.evaluation.records import read_rows

RECIPE = {"encoder": "light", "steps": 1, "batch": 2, "universe": 0.0}
EXPERIMENT = {"name": "main", "protocol": "leave-one-out", "methods": ["source", "tent"]}


@pytest.fixture
def ask(tmp_path, discs):
    """`ask(**fields)`: prepare a config about the discs."""

    def make(out="run", folder=discs, only=(), **fields):
        config = {"name": "t", "recipe": RECIPE, "experiments": [EXPERIMENT]} | fields
        (tmp_path / "t.yaml").write_text(yaml.safe_dump(config))
        return prepare_run(RunRequest(tmp_path / "t.yaml", tmp_path / out, folder, device="cpu", only=only))

    return make


def test_the_plan_is_written_and_read_back(ask, tmp_path):
    ready = ask()
    assert read_run(tmp_path / "run") == ready.run
    assert ready.folder.device == "cpu"
    assert ready.workers >= 1


def test_preparing_twice_plans_the_same_jobs(ask):
    assert ask("a").run.jobs == ask("b").run.jobs


def test_a_changed_image_is_another_job(ask, discs, tmp_path):
    shutil.copytree(discs, tmp_path / "copy")
    same = ask(folder=tmp_path / "copy").run.jobs
    assert same.keys() == ask().run.jobs.keys()
    image = tmp_path / "copy" / "west" / "images" / "03.png"
    image.write_bytes(image.read_bytes() + b"\0")
    kept = same.keys() & ask(folder=tmp_path / "copy").run.jobs.keys()
    assert [list(same[key].sources) for key in kept] == [
        ["east", "south"]
    ]  # the model that is not trained on west


def test_a_run_is_not_continued_after_the_table_of_a_site_has_changed(ask, discs, tmp_path):
    """Other patients are held out then, which the keys of jobs do not say."""
    folder = shutil.copytree(discs, tmp_path / "copy")
    ask(folder=folder)
    table = folder / "west" / "cases.csv"
    before = table.read_text() if table.is_file() else None
    table.write_text("case,patient,split\n00,p,test\n")
    with pytest.raises(UserError, match=r"splits or voxel sizes of west are not those of the run"):
        ask(folder=folder)
    assert read_run(tmp_path / "run").tables
    ask("other", folder=folder)
    table.unlink() if before is None else table.write_text(before)
    ask(folder=folder)


@pytest.mark.parametrize("fields", [{"baseline": "sourc"}, {"experiments": [EXPERIMENT | {"methods": ["tent"]}]},
                                    {"experiments": [EXPERIMENT | {"views": ["flips"]}]}])  # fmt: skip
def test_a_table_without_its_baseline_is_refused_before_anything_is_written(ask, tmp_path, fields):
    with pytest.raises(UserError, match="'main' has no row of the baseline 'sourc"):
        ask(**fields)
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_benchmark_file_is_found_beside_the_yaml_file(ask, discs, tmp_path):
    shutil.copy(discs / "benchmark.yaml", tmp_path / "mine.yaml")
    assert ask(benchmark="mine.yaml").run.jobs.keys() == ask("b").run.jobs.keys()


def test_a_damaged_plan_is_written_again(ask, tmp_path):
    plan = ask().run
    path = tmp_path / "run" / "run.json"
    path.write_text(path.read_text()[:500])
    assert ask(only=("main",)).run == plan
    assert read_run(tmp_path / "run") == plan


def test_hospitals_are_drawn_where_the_config_asks_for_them(ask):
    ready = ask(folder=None, synthetic={"cases": 2, "size": 32})
    assert (ready.folder.data / "north" / "images").is_dir()
    assert next(iter(ready.run.jobs.values())).benchmark["size"] == 32


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"sites": ["east", "wset"]}, "has no site 'wset'; did you mean 'west'"),
        ({"data": "nowhere"}, "no folder at"),
        ({"benchmark": "ployp"}, "did you mean 'polyp'"),
        ({"recipe": {"encoder_weights": "none.safetensors"}}, "no encoder weights at"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(ask, discs, fields, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        ask(folder=None if "data" in fields else discs, **fields)
    assert "\n" not in str(error.value)


def test_some_experiments_of_a_yaml_can_be_run_alone(ask):
    two = [EXPERIMENT, EXPERIMENT | {"name": "other", "batches": [1]}]
    whole, part = ask("a", experiments=two).run, ask("b", experiments=two, only=("other",)).run
    assert {entry.experiment for entry in part.entries} == {"other"}
    assert part.jobs.keys() < whole.jobs.keys()
    with pytest.raises(UserError, match="did you mean 'other'"):
        ask(experiments=two, only=("othr",))


def test_a_run_may_be_made_piece_by_piece_and_shows_all_pieces(ask):
    two = [EXPERIMENT, EXPERIMENT | {"name": "other", "batches": [1]}]
    ask(experiments=two, only=("other",))
    later = ask(experiments=two, only=(EXPERIMENT["name"],))
    assert [entry.experiment for entry in later.run.entries] == [
        entry.experiment for entry in ask("whole", experiments=two).run.entries
    ]
    mine = {entry.job for entry in later.run.entries if entry.experiment == EXPERIMENT["name"]}
    assert mine <= later.jobs.keys() < later.run.jobs.keys()
    assert {e.experiment for e in ask(experiments=two[:1]).run.entries} == {EXPERIMENT["name"]}  # all anew


def test_no_data_at_all_is_asked_for(ask, monkeypatch):
    monkeypatch.delenv("TTDG_DATA", raising=False)
    with pytest.raises(UserError, match="no benchmark folder was named; name one, or set TTDG_DATA"):
        ask(folder=None)


def command(tmp_path, out):
    arguments = [
        "bench",
        str(tmp_path / "t.yaml"),
        "-o",
        str(tmp_path / out),
        "--workers",
        "2",
        "--device",
        "cpu",
    ]
    return subprocess.Popen([sys.executable, "-m", "ttdg", *arguments], stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_the_command_killed_at_random_moments_ends_with_the_same_records(ask, tmp_path, discs):
    ask(folder=None, data=str(discs))
    assert command(tmp_path, "calm").wait(300) == 0
    chance, kills = random.Random(1), 0
    while True:
        process = command(tmp_path, "wild")
        try:
            process.wait(chance.uniform(3, 9) if kills < 2 else 300)
            break
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            time.sleep(1)  # its workers notice and end
    assert process.returncode == 0, process.stderr.read()
    assert kills
    records = {path.name: path for path in (tmp_path / "wild" / "records").iterdir()}
    for path in (tmp_path / "calm" / "records").iterdir():
        one, two = (
            [str(row) for row in read_rows(p) if row[4] != "seconds"] for p in (path, records.pop(path.name))
        )
        assert one == two
    assert not [name for name in records if not name.startswith(".")]
    assert json.loads((tmp_path / "wild" / "run.json").read_text())["name"] == "t"
