"""One process at a time writes an output folder, and a lock is never in the way afterwards."""

import errno
import fcntl
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image
from typer.testing import CliRunner

from ttdg.cli import app
from ttdg.errors import UserError
from ttdg.newsite import predict
from ttdg.newsite.inputs import find_files
from ttdg.newsite.lock import LOCK, lock_output
from ttdg.newsite.revert import revert

HOLD = """
import sys, time
from pathlib import Path
from ttdg.newsite.lock import lock_output
with lock_output(Path(sys.argv[1])):
    Path(sys.argv[1], "held").touch()
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of `out`."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "out")]) as process:
        while not (tmp_path / "out" / "held").exists() and process.poll() is None:
            time.sleep(0.01)
        yield process
        process.kill()


def test_a_second_process_is_refused_and_a_killed_one_leaves_the_folder_free(
    disc_model, images, tmp_path, holder
):
    out = tmp_path / "out"
    before = sorted(out.iterdir())
    with pytest.raises(UserError, match=r"another process of ttdg is writing to .*out; wait until it ends"):
        predict(disc_model, images, out)
    assert sorted(out.iterdir()) == before
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (out / LOCK).exists()
    assert predict(disc_model, images, out).done == 7
    assert not (out / LOCK).exists()


def test_answers_are_not_withdrawn_while_another_process_writes(disc_model, images, tmp_path):
    out = tmp_path / "out"
    predict(disc_model, images, out, overlays=False)
    with lock_output(out), pytest.raises(UserError, match="another process"):
        revert(out, 0)
    assert len(list((out / "masks").iterdir())) == 7


def test_two_pages_do_not_share_a_folder_of_sites(tmp_path):
    with lock_output(tmp_path / "work"):
        result = CliRunner().invoke(app, ["serve", "--work", str(tmp_path / "work"), "--port", "0"])
    assert isinstance(result.exception, UserError)
    assert "end it first, or choose another --work" in str(result.exception)


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_stays_if_it_was_there_or_holds_a_file(tmp_path, there):
    out = tmp_path / "a" / "b"
    if there:
        out.mkdir(parents=True)
    with pytest.raises(RuntimeError), lock_output(out):
        raise RuntimeError
    assert (tmp_path / "a").exists() == out.exists() == there
    with lock_output(out):
        (out / "file").touch()
    assert [path.name for path in out.iterdir()] == ["file"]


def test_a_lock_whose_file_was_removed_in_between_is_taken_again(tmp_path, monkeypatch):
    """The owner ends after this process opened the file, and before it locks it."""
    flock, removed = fcntl.flock, []

    def late(file, how):
        if not removed:
            removed.append((tmp_path / LOCK).unlink())
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with lock_output(tmp_path), pytest.raises(UserError, match="another process"), lock_output(tmp_path):
        pass
    assert removed


def test_a_file_system_without_locks_is_written(tmp_path, monkeypatch):
    def refuse(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock_output(tmp_path / "out"):
        (tmp_path / "out" / "file").touch()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["file"]


def test_a_lock_is_no_input(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / LOCK).touch()
    found = find_files([tmp_path], tmp_path / "out")
    assert [image.file for image in found.images] == ["a.png"]
    assert list(found.ignored) == [LOCK]
    assert not found.set_aside
