"""Names, files and signals that a command line meets: markup in names, deep nesting, bombs, damage, Ctrl-C."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file
from typer.testing import CliRunner

from ttdg.bench.config import parse_config, read_config
from ttdg.bench.run_file import read_run
from ttdg.checkpoints import load, save
from ttdg.cli import app
from ttdg.cli.progress import progress_bar
from ttdg.data import load_benchmark
from ttdg.errors import UserError
from ttdg.evaluation.records import LARGEST, check_size, read_about, read_rows
from ttdg.evaluation.tuned_options import read_choices, read_search
from ttdg.networks.weights import read_weights
from ttdg.report.terminal import SiteRow, scores_table

DEEP = "[" * 1_000  # the interpreter's limit of recursion; yaml takes seconds for more
NAME = "disc [/x] [bold]"


def text_of(renderable) -> str:
    console = Console(width=300)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_markup_in_the_names_of_sites_and_regions_is_shown_as_it_is():
    row = SiteRow(NAME, "source", 1, 50.0, 50.0, 50.0, {NAME: 1.0, "cup": 2.0}, 1.0)
    assert text_of(scores_table([row], f"title of {NAME}")).count(NAME) == 3


def test_a_progress_bar_shows_markup_in_names_as_it_is(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress_bar(NAME, 2) as report:
        report(1)
    assert NAME in capsys.readouterr().err


def test_info_shows_markup_in_names_as_it_is(disc_model, tmp_path):
    save(tmp_path / "m", disc_model.network, disc_model.card)
    card = json.loads((tmp_path / "m/model.json").read_text())
    card["sources"] = {NAME: {"cases": 1, "fingerprint": ""}}
    (tmp_path / "m/model.json").write_text(json.dumps(card))
    result = CliRunner().invoke(app, ["info", str(tmp_path / "m")], env={"COLUMNS": "300"})
    assert NAME in result.output, result.exception


@pytest.mark.parametrize("name", ["benchmark", "config", "search", "choices", "run", "record", "card"])
def test_deep_nesting_is_one_sentence(name, tmp_path, disc_model):
    path = tmp_path / "deep.yaml"
    path.write_text(DEEP)
    (tmp_path / "run.json").write_text(DEEP)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(f"#{DEEP}\n".encode()))
    (tmp_path / "model.json").write_text(DEEP)
    reading = {
        "benchmark": lambda: load_benchmark(path),
        "config": lambda: read_config(path),
        "search": lambda: read_search(path, {}),
        "choices": lambda: read_choices(path),
        "run": lambda: read_run(tmp_path),
        "record": lambda: read_about(tmp_path / "a.csv.gz"),
        "card": lambda: load(tmp_path),
    }
    with pytest.raises(UserError):
        reading[name]()


def test_a_number_in_words_is_refused_in_words():
    with pytest.raises(UserError, match="steps"):
        parse_config({"name": "a", "steps": "many"}, "a.yaml")


def test_a_compressed_bomb_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(bytes(1 << 22), 9))
    with pytest.raises(ValueError, match="more than"):
        check_size(path, 1 << 21)
    check_size(path, 1 << 22)
    part = gzip.compress(bytes(1 << 24), 1)
    path.write_bytes(part * (LARGEST // (1 << 24) + 1))  # members follow each other
    for read in (read_about, read_rows):
        with pytest.raises(UserError, match="is not a record"):
            read(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_truncated_encoder_weights_are_one_sentence(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    save_file({"a": np.zeros(1000, np.float32)}, path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(UserError, match=f"w{suffix}"):
        read_weights(path)


@pytest.fixture(scope="module")
def checkpoint(disc_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "m"
    save(folder, disc_model.network, disc_model.card)
    return folder


ODD = (None, [], "x", -1, {"a": []})


@pytest.mark.parametrize(
    "field", ["network", "benchmark", "sources", "recipe", "validation", "versions", "sha256"]
)
def test_an_odd_model_card_is_read_or_refused_in_words(field, checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "m")
    original = json.loads((folder / "model.json").read_text())
    fields = original[field] if isinstance(original[field], dict) else {}
    cards = [{**original, field: value} for value in ODD]
    cards += [{**original, field: {**fields, name: value}} for name in fields for value in ODD]
    for card in cards:
        (folder / "model.json").write_text(json.dumps(card))
        result = CliRunner().invoke(app, ["info", str(folder)])
        assert result.exception is None or isinstance(result.exception, UserError), (
            card[field],
            result.exception,
        )


WAITING = """
import sys, time
import ttdg.cli.info
def wait(path):
    print("waiting", flush=True)
    time.sleep(60)
ttdg.cli.info.describe_checkpoint = wait
sys.argv = ["ttdg", "info", "demo"]
ttdg.cli.main()
"""


def test_an_interrupted_command_says_that_finished_work_is_kept():
    with subprocess.Popen(
        [sys.executable, "-c", WAITING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.endswith("ttdg: interrupted; finished work is kept, and the same command resumes\n")
    assert "Traceback" not in errors
