"""What an interrupted run of a method that learns a site resumes from."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from ttdg.adaptation.site_learning.learner import SelfTraining
from ttdg.checkpoints import load, save
from ttdg.newsite import predict, run_state

STREAMS = ("folder", "online")


class Stop(Exception):
    """Stands for anything that ends a run."""


def stop_at(count):
    def progress(done, total):
        if done >= count:
            raise Stop

    return progress


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("saves", [True, False])
def test_an_interrupted_run_ends_in_the_same_files(
    disc_model, images, tmp_path, monkeypatch, stream, saves, self_training, written
):
    """With or without a saved state of the online stream, which is written every minute at most."""
    monkeypatch.setattr(run_state, "SECONDS", 0.0 if saves else 60.0)
    self_training(disc_model, images, tmp_path / "whole", stream)
    with pytest.raises(Stop):
        self_training(disc_model, images, tmp_path / "out", stream, progress=stop_at(4))
    assert (tmp_path / "out" / "state").exists() == (saves or stream == "folder")
    resumed = self_training(disc_model, images, tmp_path / "out", stream)
    assert resumed.kept >= 3
    assert resumed.done >= 2
    assert written(tmp_path / "out") == written(tmp_path / "whole")
    assert not (tmp_path / "out" / "state").exists()


def test_a_learned_folder_is_not_learned_again(disc_model, images, tmp_path, monkeypatch, self_training):
    with pytest.raises(Stop):
        self_training(disc_model, images, tmp_path / "out", progress=stop_at(4))
    monkeypatch.delattr(SelfTraining, "_learn")
    self_training(disc_model, images, tmp_path / "out")
    again = self_training(disc_model, images, tmp_path / "out")  # all answers are in the journal
    assert (again.done, again.kept) == (0, 7)


def test_learning_that_was_interrupted_starts_again(disc_model, images, tmp_path, self_training, written):
    self_training(disc_model, images, tmp_path / "whole")
    with pytest.raises(Stop):
        self_training(disc_model, images, tmp_path / "out", learning=stop_at(2))
    assert not (tmp_path / "out" / "state").exists()
    self_training(disc_model, images, tmp_path / "out")
    assert written(tmp_path / "out") == written(tmp_path / "whole")


def test_an_online_run_continues_after_the_batch_of_its_state(
    disc_model, images, tmp_path, monkeypatch, self_training, written
):
    """The clock advances by 25 seconds a batch, so the state is saved after the third of the four batches."""
    seconds, steps = [0.0], []
    monkeypatch.setattr(run_state, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    learn = SelfTraining._learn
    monkeypatch.setattr(SelfTraining, "_learn", lambda self: (steps.append(1), learn(self)))

    def progress(done, total):
        states = list((tmp_path / "out" / "state").glob("*.safetensors"))
        assert len(states) == (done >= 6)
        seconds[0] += 25
        if done == total:
            raise Stop

    self_training(disc_model, images, tmp_path / "whole", "online")
    steps.clear()
    with pytest.raises(Stop):
        self_training(disc_model, images, tmp_path / "out", "online", progress=progress)
    assert len(steps) == 4
    os.remove(tmp_path / "out" / "masks" / "06.png")  # the last batch has to be answered again
    steps.clear()
    resumed = self_training(disc_model, images, tmp_path / "out", "online")
    assert (resumed.done, resumed.kept, len(steps)) == (1, 6, 1)
    assert written(tmp_path / "out") == written(tmp_path / "whole")


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("change", ["image", "option", "lost mask", "cut", "one bit"])
def test_a_state_that_does_not_fit_is_not_used(
    disc_model, images, tmp_path, monkeypatch, stream, change, self_training, written, quick
):
    """The run starts again, and ends in the files of a run without a past."""
    monkeypatch.setattr(run_state, "SECONDS", 0.0)
    with pytest.raises(Stop):
        self_training(disc_model, images, tmp_path / "out", stream, progress=stop_at(6))
    options = quick
    if change == "image":
        Image.fromarray(np.full((20, 30, 3), (200, 10, 90), np.uint8)).save(images / "00.png")
    elif change == "option":
        options = quick | {"seed": 1}
    elif change == "lost mask":
        os.remove(tmp_path / "out" / "masks" / "00.png")
    else:
        (state,) = (tmp_path / "out" / "state").iterdir()
        content = bytearray(state.read_bytes())
        content[-9] ^= 64
        state.write_bytes(content[:1000] if change == "cut" else content)
    self_training(disc_model, images, tmp_path / "out", stream, options, again=change == "option")
    self_training(disc_model, images, tmp_path / "whole", stream, options)
    assert written(tmp_path / "out") == written(tmp_path / "whole")


def test_a_method_that_cannot_save_its_state_learns_a_folder_again(disc_model, images, tmp_path, written):
    tent = {"method": "tent", "options": {"lr": 0.05}, "stream": "folder", "batch": 2}
    predict(disc_model, images, tmp_path / "whole", **tent)
    with pytest.raises(Stop):
        predict(disc_model, images, tmp_path / "out", progress=stop_at(4), **tent)
    assert not (tmp_path / "out" / "state").exists()
    assert predict(disc_model, images, tmp_path / "out", **tent).kept >= 3
    assert written(tmp_path / "out") == written(tmp_path / "whole")


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("process", ["forked", pytest.param("fresh", marks=pytest.mark.slow)])
def test_a_killed_process_ends_in_the_same_files_and_learns_nothing_twice(
    disc_model, images, tmp_path, monkeypatch, stream, process, self_training, written, quick, killed
):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    model, out = load(tmp_path / "model", "cpu"), tmp_path / "out"
    arguments = [str(x) for x in (tmp_path / "model", images, out, stream, json.dumps(quick))]
    if process == "forked":
        assert killed(lambda: run_and_wait(*arguments), (out / "waiting").exists) == -signal.SIGKILL
    else:
        fresh = subprocess.Popen(
            [sys.executable, __file__, *arguments], env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        while not (out / "waiting").exists() and fresh.poll() is None:
            time.sleep(0.01)
        fresh.send_signal(signal.SIGKILL)
        assert fresh.wait() == -signal.SIGKILL
    self_training(model, images, tmp_path / "whole", stream)
    steps, learn = [], SelfTraining._learn
    monkeypatch.setattr(SelfTraining, "_learn", lambda self: (steps.append(1), learn(self)))
    resumed = self_training(model, images, out, stream)
    assert len(steps) == (0 if stream == "folder" else -(-resumed.done // 2))
    assert resumed.done >= 2
    assert written(out) == written(tmp_path / "whole")


def run_and_wait(model, images, out, stream, options):
    """Learn and answer four images, say so by a file, and wait to be killed."""
    run_state.SECONDS = 0.0

    def progress(done, total):
        if done >= 4:
            Path(out, "waiting").touch()
            time.sleep(600)

    predict(
        load(model, "cpu"), Path(images), Path(out), method="self-training", options=json.loads(options),
        stream=stream, batch=2, progress=progress,
    )  # fmt: skip


if __name__ == "__main__":
    run_and_wait(*sys.argv[1:])
