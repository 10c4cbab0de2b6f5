"""`ttdg fit` fits parts to a network by its import path, and reads no pickle that could run code."""

import sys

import pytest
import torch
from typer.testing import CliRunner

import ttdg
from ttdg.cli import app

MODULE = """
from torch import nn

def make(outputs=2, channels=3):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, outputs, 1),
        nn.Upsample(scale_factor=4),
    )

def number():
    return 3
"""
SHORT = ("--steps", 1, "--hospitals", 1, "--draws", 1, "--learning-steps", 1, "--folder-steps", 2)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a module of the user's, and weights of its network."""
    (tmp_path / "users_networks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "users_networks", raising=False)
    sys.path.insert(0, str(tmp_path))
    from users_networks import make

    torch.manual_seed(0)
    torch.save(make().state_dict(), tmp_path / "two.pt")
    torch.save(make(outputs=1, channels=1).state_dict(), tmp_path / "one.pt")
    return tmp_path


def fit(discs, *more, network="users_networks:make"):
    given = [
        "fit",
        "--network",
        network,
        "-d",
        discs,
        "--sources",
        "east",
        "-o",
        "parts",
        "--device",
        "cpu",
        *SHORT,
        *more,
    ]
    return CliRunner().invoke(app, [str(a) for a in given], env={"COLUMNS": "200", "TERM": "dumb"})


def loaded(weights, **settings):
    from users_networks import make

    network = make(**settings)
    network.load_state_dict(torch.load(weights, weights_only=True))
    return network


def test_the_parts_of_a_network_by_import_path_serve_universe(project, discs):
    result = fit(discs, "--weights", "two.pt", "--activation", "softmax", "--taps", "0,2")
    assert result.exit_code == 0, result.exception
    assert "features of 0, 2; parts written to parts" in result.output
    adapter = ttdg.adapt(loaded("two.pt"), "universe", parts="parts", draw=2)
    assert adapter(torch.rand(2, 3, 32, 32)).shape == (2, 2, 32, 32)


def test_a_grey_network_with_one_sigmoid_channel_per_region_is_fitted(project, discs):
    result = fit(discs, "--weights", "one.pt", "--set", "outputs=1", "--set", "channels=1", "--channels", 1)
    assert result.exit_code == 0, result.exception
    adapter = ttdg.adapt(loaded("one.pt", outputs=1, channels=1), "judge", parts="parts")
    assert adapter(torch.rand(2, 1, 32, 32)).shape == (2, 1, 32, 32)


class Dangerous:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_a_pickle_that_could_run_code_is_refused(project, discs, capsys):
    torch.save({"weight": Dangerous()}, "bad.pt")
    result = fit(discs, "--weights", "bad.pt", "--activation", "softmax")
    assert "could run code" in str(result.exception)
    assert "this must not run" not in result.output + capsys.readouterr().out


@pytest.mark.parametrize(
    ("network", "more", "message"),
    [
        ("users_networks", (), "package.module:name"),
        ("no_such_package:make", (), "cannot import no_such_package"),
        ("users_networks:mke", (), "did you mean 'make'"),
        ("users_networks:number", (), "returns a int, not a torch.nn.Module"),
        ("users_networks:make", ("--set", "width=3"), "cannot be called"),
        (
            "users_networks:make",
            ("--weights", "one.pt"),
            "does not fit the network that users_networks:make makes",
        ),
        ("users_networks:make", (), "2 output channels, and nothing says"),
        ("users_networks:make", ("--activation", "tanh"), "--activation is softmax or sigmoid"),
        ("users_networks:make", ("--activation", "sigmoid"), "but the benchmark has 1: disc"),
    ],
)
def test_a_wrong_request_is_answered_in_a_sentence(project, discs, network, more, message):
    assert message in str(fit(discs, *more, network=network).exception)
