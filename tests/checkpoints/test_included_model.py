"""The included model is found by its name, whatever lies in the folder where a command runs."""

import pytest
from typer.testing import CliRunner

from ttdg.checkpoints import is_included, load, save
from ttdg.cli import app
from ttdg.errors import UserError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_of_results_does_not_hide_the_included_model(here):
    (here / "demo").mkdir()
    assert is_included("demo")
    assert len(load("demo").card.sources) == 4


def test_a_checkpoint_folder_is_preferred_to_the_included_model_of_its_name(here, disc_model):
    save(here / "demo", disc_model.network, disc_model.card)
    assert not is_included("demo")
    assert load("demo").card.benchmark.name == "discs"


def test_no_part_is_fitted_to_the_included_model_beside_a_folder_of_its_name(here):
    (here / "demo").mkdir()
    said = CliRunner().invoke(app, ["fit-judge", "demo", "--again"]).exception
    assert "demo is part of the installation" in str(said)
    assert not list((here / "demo").iterdir())


@pytest.mark.parametrize("name", ["demos", "models/none"])
def test_an_unknown_name_is_answered_with_the_included_model(name, here):
    with pytest.raises(UserError, match=r"no checkpoint at .* or the included model 'demo'"):
        load(name)
