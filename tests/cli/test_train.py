"""What `ttdg train` refuses before the work, and what it says of a training that failed."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ttdg.bench.folder import exclusive_lock
from ttdg.cli import app
from ttdg.errors import UserError
from ttdg.training import Recipe, make_fabric
from ttdg.training.resume import State


def train(*arguments):
    common = ["--encoder", "light", "--batch", "2", "--universe", "0", "--accelerator", "cpu"]
    return CliRunner().invoke(app, ["train", *common, *map(str, arguments)], env={"COLUMNS": "200"})


def test_a_folder_that_cannot_be_written_is_refused_before_data_are_read(tmp_path):
    (file := tmp_path / "file").touch()
    assert "is a file; name a folder" in str(train("-d", tmp_path, "-o", file).exception)
    assert "cannot write to" in str(train("-d", tmp_path, "-o", file / "inside").exception)


def test_two_trainings_into_one_folder_do_not_run_at_once(discs, tmp_path):
    with exclusive_lock(tmp_path / ".m.lock", wait=False):
        result = train("-d", discs, "-o", tmp_path / "m", "--steps", 1)
    assert isinstance(result.exception, UserError)
    assert "another run is using" in str(result.exception)
    assert not (tmp_path / "m").exists()


def test_a_training_that_diverges_is_an_error_and_leaves_nothing(discs, tmp_path):
    result = train("-d", discs, "-o", tmp_path / "m", "--steps", 20, "--lr", 1e9)
    assert isinstance(result.exception, UserError)
    assert "the training diverged" in str(result.exception)
    assert "learning rate below 1e+09" in str(result.exception)
    assert not (tmp_path / "m").exists()
    assert not (tmp_path / "m.partial").exists()


def test_a_model_that_finds_nothing_is_said_to(discs, tmp_path, monkeypatch):
    monkeypatch.setattr("ttdg.training.loop.validate", lambda *_: {"disc": 0.0, "cup": 0.5})
    result = train("-d", discs, "-o", tmp_path / "m", "--steps", 1)
    assert result.exit_code == 0, result.exception
    assert "warning: disc: " in result.stderr
    assert "the model finds nothing on held-out images of its own sites" in result.stderr


def test_an_accelerator_that_is_not_there_is_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments, words in (
        (("cuda",), "PyTorch finds no GPU"),
        (("gpu",), "unknown accelerator 'gpu'"),
        (("cpu", 0), "must be 1 or more, not 0"),
    ):
        with pytest.raises(UserError, match=words):
            make_fabric(Recipe(), *arguments)


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "another object", "another network"])
def test_a_damaged_state_is_one_sentence_that_names_the_remedy(tmp_path, damage):
    network = torch.nn.Linear(2, 2)
    optimiser = torch.optim.SGD(network.parameters(), 0.1)
    state = State(tmp_path / "m", {"recipe": {}}, 60.0)
    state.save(network, optimiser, 3)
    assert state.resume(network, optimiser) == 3
    data = state.file.read_bytes()
    if damage == "another object":
        torch.save([1, 2], state.file)
    elif damage == "another network":
        network = torch.nn.Linear(3, 3)
    else:
        state.file.write_bytes({"cut": data[: len(data) // 2], "text": b"hello", "empty": b""}[damage])
    with pytest.raises(UserError, match=r"state\.pt is damaged .* remove .*m\.partial to start"):
        state.resume(network, optimiser)


def test_a_state_with_flipped_bytes_is_read_or_refused_in_words(tmp_path):
    network = torch.nn.Linear(2, 2)
    optimiser = torch.optim.SGD(network.parameters(), 0.1)
    state, rng = State(tmp_path / "m", {"recipe": {}}, 60.0), np.random.default_rng(0)
    state.save(network, optimiser, 3)
    data = np.frombuffer(state.file.read_bytes(), np.uint8)
    for _ in range(200):
        damaged = data.copy()
        damaged[rng.integers(len(data), size=3)] = rng.integers(256, size=3)
        state.file.write_bytes(damaged.tobytes())
        with suppress(UserError):
            state.resume(network, optimiser)
