"""`ttdg fit` keeps existing parts, says which weights it fits, and refuses an empty file of weights."""

import sys

import pytest
import torch
from typer.testing import CliRunner

from ttdg.cli import app

MODULE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 2, 2), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.Upsample(scale_factor=2))

def grey():
    return nn.Sequential(nn.Conv2d(1, 4, 2, 2), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.Upsample(scale_factor=2))
"""
SHORT = ("--steps", 1, "--hospitals", 1, "--draws", 1, "--learning-steps", 1, "--folder-steps", 2)
PARTS = ("judge", "output", "prior")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a module of the user's."""
    (tmp_path / "own_networks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "own_networks", raising=False)
    return tmp_path


def fit(discs, *more, network="own_networks:make"):
    given = [
        "fit", "--network", network, "-d", discs, "--sources", "east", "-o", "parts", "--device", "cpu",
        "--activation", "softmax", *SHORT, *more,
    ]  # fmt: skip
    return CliRunner().invoke(app, [str(a) for a in given], env={"COLUMNS": "200", "TERM": "dumb"})


def test_existing_parts_are_replaced_with_again_only(project, discs):
    assert fit(discs).exit_code == 0
    before = {name: (project / "parts" / f"{name}.safetensors").read_bytes() for name in PARTS}
    refused = fit(discs, "--seed", 1)
    assert "parts has the parts prior, judge, output already; use --again" in str(refused.exception)
    assert all((project / "parts" / f"{name}.safetensors").read_bytes() == before[name] for name in PARTS)
    assert fit(discs, "--seed", 1, "--again").exit_code == 0
    assert (project / "parts" / "prior.safetensors").read_bytes() != before["prior"]


def test_a_fit_without_weights_says_whose_weights_are_fitted(project, discs):
    from own_networks import make

    said = "the parts are fitted to the weights that own_networks:make makes"
    assert said in fit(discs).output
    torch.save(make().state_dict(), "own.pt")
    assert said not in fit(discs, "--weights", "own.pt", "--again").output


@pytest.mark.parametrize("name", ["empty.pt", "empty.safetensors"])
def test_an_empty_file_of_weights_is_called_empty(name, project, discs):
    (project / name).touch()
    said = str(fit(discs, "--weights", name).exception)
    assert said == f"{name} is empty; copy or download it again"


def test_a_grey_network_without_its_channels_is_told_the_option(project, discs):
    assert "try --channels 1" in str(fit(discs, network="own_networks:grey").exception)
