"""A full disk ends in one sentence, and the same command goes on when there is space."""

import errno
import os
import subprocess
import sys

import pytest
from safetensors import SafetensorError

from ttdg import cli, files
from ttdg.cli import FULL, is_full_disk, main
from ttdg.newsite import predict

KINDS = (
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "somewhere"),
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    SafetensorError(
        'Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space" })'
    ),
)
OTHERS = (
    OSError(errno.EIO, "Input/output error"),
    SafetensorError("Error while deserializing: InvalidHeader"),
    SafetensorError("Error while serializing: I/O error: Permission denied (os error 13)"),
    RuntimeError("os error 28"),
)


@pytest.mark.parametrize("error", KINDS, ids=str)
def test_a_full_disk_ends_the_command_with_one_sentence(error, monkeypatch, capsys):
    def fail():
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"ttdg: {FULL}\n"


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_other_errors_are_no_full_disk(error, monkeypatch, capsys):
    def fail():
        raise error

    assert not is_full_disk(error)
    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(type(error)):
        main()


LIMITED = """
import errno, resource, signal, sys
import torch
from safetensors.torch import save_file
from ttdg import cli
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
cli.DISK_ERRORS = (errno.EFBIG,)
try:
    save_file({"a": torch.zeros(1 << 16)}, sys.argv[1])
except Exception as error:
    sys.exit(0 if cli.is_full_disk(error) else str(error))
sys.exit("the file was written")
"""


def test_the_number_of_a_system_error_is_found_in_that_of_safetensors(tmp_path):
    """A limit of the size of files stands for the full disk."""
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "state.safetensors")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_run_that_filled_the_disk_goes_on_to_the_same_masks(disc_model, images, tmp_path, monkeypatch):
    common = {"method": "norm", "batch": 2}
    replace, written = os.replace, []

    def full(source, target):
        if "masks" in str(target):
            written.append(target)
            if len(written) == 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            predict(disc_model, images, tmp_path / "out", **common)
    predict(disc_model, images, tmp_path / "out", **common)
    predict(disc_model, images, tmp_path / "whole", **common)
    found, expected = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "masks").iterdir()}
        for name in ("out", "whole")
    )
    assert found == expected
