import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ttdg.checkpoints import read_card, save, save_part
from ttdg.cli import app, main
from ttdg.cli.options import parse_settings
from ttdg.errors import UserError
from ttdg.types import Part

COMMANDS = [[], ["demo"], ["data"], ["data", "check"], ["data", "synth"], ["data", "pack"],
            ["data", "import"], ["train"], ["evaluate"],
            ["predict"], ["info"], ["bench"], ["report"], ["verify"], ["leaderboard"], ["methods"],
            ["tune"], ["fit-prior"], ["fit-judge"], ["prior"], ["prior", "inspect"],
            ["figure"], ["figure", "segmentation"], ["figure", "grad-cam"], ["figure", "matching"],
            ["figure", "class-matrix"]]  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.fixture
def model(tmp_path, disc_model):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    return tmp_path / "model"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_every_leaf_an_example(command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    if command not in ([], ["data"], ["prior"], ["figure"]):
        assert re.search(rf"Example: ttdg {' '.join(command)}", result.output.replace("\n", " "))


def test_help_does_not_load_torch():
    code = "import sys, ttdg.cli; sys.exit(any(m in sys.modules for m in ('torch', 'monai', 'matplotlib', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_users_mistake_is_one_sentence_without_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ttdg", "info", "nowhere"])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    assert re.fullmatch(r"ttdg: no checkpoint at nowhere: [^\n]*\n", capsys.readouterr().err)


def test_a_path_that_cannot_be_written_is_one_sentence_without_a_traceback(monkeypatch, capsys):
    def fail():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), "some/file")

    monkeypatch.setattr("ttdg.cli.app", fail)
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    assert capsys.readouterr().err == (
        "ttdg: cannot use some/file (File exists); check the path and permissions\n"
    )


def test_other_errors_of_the_operating_system_keep_their_traceback(monkeypatch):
    def fail():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "some/file")

    monkeypatch.setattr("ttdg.cli.app", fail)
    with pytest.raises(FileNotFoundError):
        main()


@pytest.mark.parametrize(
    "command", [("predict", "-i", "."), ("demo",), ("data", "synth"), ("prior", "inspect", "demo", ".")]
)
def test_an_output_folder_that_cannot_be_written_is_refused_at_once(command, tmp_path):
    file = tmp_path / "file"
    file.touch()
    name = () if command[:2] == ("data", "synth") else ("-o",)
    for out, words in ((file, "is a file; name a folder"), (file / "inside", "cannot write to")):
        assert words in str(run(*command, *name, out).exception)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
def test_a_place_that_permissions_allow_but_nothing_can_be_written_to_is_refused():
    assert "cannot write to" in str(run("predict", "-i", ".", "-o", "/proc/out").exception)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_place_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    assert "cannot write to" in str(run("predict", "-i", ".", "-o", tmp_path / "out").exception)
    tmp_path.chmod(0o700)


def test_a_wrong_device_or_number_of_workers_is_one_sentence(model, discs, tmp_path):
    common = ("predict", "-m", model, "-i", discs / "west" / "images", "-o", tmp_path / "out")
    assert "unknown device 'banana'" in str(run(*common, "--device", "banana").exception)
    result = run(*common, "--workers", "-3")
    assert result.exit_code == 2
    assert "Invalid value for '--workers'" in result.output
    assert "Traceback" not in result.output


def test_evaluate_takes_the_options_a_search_chose(model, discs, tmp_path):
    """The result equals that of the same options given with `--set`."""
    tuned = tmp_path / "tuned.yaml"
    methods = "{alpha-bn: {chosen: {alpha: 1.0}, dice: 90, trials: []}}"
    tuned.write_text(f"model: {read_card(model).sha256}\nsources: [east]\nmethods: {methods}")
    rows = {}
    for name, extra in {"tuned": ["--tuned", tuned], "set": ["--set", "alpha=1.0"], "default": []}.items():
        out = tmp_path / name
        result = run(
            "evaluate", "-m", model, "-d", discs, "--site", "west", "--method", "alpha-bn", "-o", out, *extra
        )
        assert result.exit_code == 0, result.output
        rows[name] = [line.rsplit(",", 1)[0] for line in (out / "records.csv").read_text().splitlines()]
    assert rows["tuned"] == rows["set"]  # except for the seconds in the last column
    assert rows["tuned"] != rows["default"]


def test_evaluate_writes_records_and_prints_a_table(model, discs, tmp_path):
    result = run("evaluate", "-m", model, "-d", discs, "--site", "west", "--method", "source", "--method", "norm",
                 "-o", tmp_path / "records", "--device", "cpu")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "norm" in result.output
    lines = (tmp_path / "records" / "records.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 10


def test_settings_reach_the_method_and_wrong_ones_are_named(model, discs):
    common = (
        "evaluate",
        "-m",
        model,
        "-d",
        discs,
        "--site",
        "west",
        "--method",
        "alpha-bn",
        "--device",
        "cpu",
    )
    assert run(*common, "--set", "alpha=0.5").exit_code == 0
    assert "between 0 and 1" in str(run(*common, "--set", "alpha=7").exception)
    assert "did you mean 'alpha'" in str(run(*common, "--set", "alhpa=0.5").exception)
    several = run(*common, "--method", "tent", "--set", "alpha=0.5")
    assert "one method" in str(several.exception)


def test_settings_are_read_as_numbers_booleans_or_text():
    assert parse_settings(["lr=1e-3", "steps=2", "head=sigmoid", "on=True"]) == {
        "lr": 0.001, "steps": 2, "head": "sigmoid", "on": True,
    }  # fmt: skip
    with pytest.raises(UserError, match="NAME=VALUE"):
        parse_settings(["lr"])


def test_an_unknown_site_is_answered_with_the_known_ones(model, discs):
    assert "did you mean 'west'" in str(run("evaluate", "-m", model, "-d", discs, "--site", "wset").exception)


def test_predict_prints_the_model_the_method_and_the_manifest(model, discs, tmp_path):
    result = run(
        "predict", "-m", model, "-i", discs / "west" / "images", "-o", tmp_path / "out", "--device", "cpu"
    )
    assert result.exit_code == 0, result.output
    assert "10 segmented, 0 kept" in result.output
    assert f"model {model} (" in result.output
    assert "method source with no options" in result.output


def test_predict_names_the_stream_that_it_chose_or_was_given(model, discs, tmp_path):
    common = (
        "predict",
        "-m",
        model,
        "-i",
        discs / "west" / "images",
        "--device",
        "cpu",
        "--method",
        "self-training",
    )
    quick = ("--set", "folder_steps=1", "--set", "steps=1", "--set", "draw=2")
    result = run(*common, *quick, "-o", tmp_path / "default")
    assert result.exit_code == 0, result.output
    assert "draw 2, stream folder" in result.output
    result = run(*common, *quick, "-o", tmp_path / "online", "--stream", "online")
    assert "draw 2, stream online" in result.output
    assert "--stream is online or folder, not 'offline'" in str(
        run(*common, "-o", tmp_path / "wrong", "--stream", "offline").exception
    )
    assert not (tmp_path / "wrong").exists()


def test_bars_appear_with_their_first_report(monkeypatch):
    """Two bars in a terminal: the second stays hidden until something is reported to it."""
    from ttdg.cli import progress

    bars, make = [], progress._progress
    monkeypatch.setattr(progress, "_progress", lambda show: bars.append(make(show)) or bars[0])
    with progress.progress_bars("learning", "segmenting") as (learning, segmenting):
        learning(2, 5)
        first, second = bars[0].tasks
        assert (first.description, first.completed, first.total) == ("learning", 2, 5)
        assert (first.visible, second.visible) == (True, False)
        segmenting(1, 8)
        assert (second.visible, second.completed, second.total) == (True, 1, 8)


def test_info_describes_the_model_and_the_installation(model):
    described = run("info", model).output
    assert "background, disc" in described
    assert re.search(r"parts +none", described)
    assert "alpha-bn" in run("info").output


def test_info_lists_the_parts_beside_the_checkpoint(model):
    for name in ("prior", "itta"):
        save_part(model, name, Part({"x": torch.zeros(1)}), read_card(model).sha256)
    assert re.search(r"parts +itta, prior", run("info", model).output)


def test_training_the_same_again_does_nothing_and_another_recipe_is_refused(discs, tmp_path):
    common = ("train", "-d", discs, "--sources", "east", "-o", tmp_path / "m", "--encoder", "light", "--batch", "2",
              "--accelerator", "cpu")  # fmt: skip
    assert run(*common, "--steps", "1").exit_code == 0
    assert "nothing to do" in run(*common, "--steps", "1").output
    assert "trained otherwise" in str(run(*common, "--steps", "2").exception)
    assert "not both" in str(run(*common, "--leave-out", "west").exception)


def test_data_is_found_by_option_or_environment(discs, monkeypatch, model):
    monkeypatch.delenv("TTDG_DATA", raising=False)
    assert "set TTDG_DATA" in str(run("evaluate", "-m", model, "--site", "west").exception)
    monkeypatch.setenv("TTDG_DATA", str(discs))
    assert run("evaluate", "-m", model, "--site", "west", "--device", "cpu").exit_code == 0


def test_check_passes_a_sound_benchmark_and_fails_a_broken_one(discs, tmp_path):
    assert run("data", "check", discs).exit_code == 0
    shutil.copytree(discs, tmp_path / "broken")
    (tmp_path / "broken" / "west" / "masks" / "03.png").unlink()
    result = run("data", "check", tmp_path / "broken")
    assert result.exit_code == 1
    assert "03.png" in result.output
