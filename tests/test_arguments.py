"""Numbers that a caller gives in Python are checked where they arrive, and refused in a sentence."""

from pathlib import Path

import jaxtyping
import pytest

from ttdg.adaptation import METHODS, checked, defaults
from ttdg.adaptation.build import build_adapter
from ttdg.adaptation.options import Range
from ttdg.arguments import LARGEST_SEED
from ttdg.errors import UserError
from ttdg.evaluation.tuning import Search
from ttdg.networks import Classifier, NetworkSpec, Segmenter
from ttdg.newsite import predict
from ttdg.training import Recipe

SEEDED = [name for name in METHODS if "seed" in defaults(name)]


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """Calls as users make them: without the check of types that the tests add."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize("seed", [2**40, -(2**40), 2**1100])
def test_a_seed_that_is_too_large_is_no_option(name, seed):
    with pytest.raises(
        UserError, match=rf"seed of '{name}' must be between -4294967295 and 4294967295, not "
    ):
        checked(name, "seed", seed)


@pytest.mark.parametrize("seed", [-1, LARGEST_SEED])
def test_a_negative_seed_and_the_largest_one_are_options_of_every_method(seed):
    assert all(checked(name, "seed", seed) == seed for name in SEEDED)


def test_a_number_that_no_float_can_hold_is_in_no_bounded_range():
    assert 10**400 not in Range(0.0, 1.0)
    assert 10**400 in Range(0.0)


@pytest.mark.parametrize("method", [3, None, ["norm"]])
def test_what_is_no_name_is_no_method(method, disc_model):
    with pytest.raises(UserError, match="unknown method"):
        build_adapter(disc_model, method, {})


@pytest.mark.parametrize("kind", [Segmenter, Classifier])
@pytest.mark.parametrize("wrong", [{"labels": 0}, {"labels": 2.5}, {"labels": "2"}, {"channels": 0}])
def test_a_network_has_whole_numbers_of_labels_and_channels(kind, wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(
        UserError, match=f"{name} of a network must be a whole number, at least 1, not {value!r}"
    ):
        kind(NetworkSpec(**{"labels": 2, "encoder": "light", **wrong}))


def test_an_encoder_that_is_no_name_is_refused():
    with pytest.raises(UserError, match="unknown encoder 3"):
        Segmenter(NetworkSpec(2, 3))


@pytest.mark.parametrize(
    "wrong", [{"steps": 2.5}, {"batch": 1.5}, {"points": 3.5}, {"seed": 2**70}, {"seed": "a"}]
)
def test_a_recipe_has_whole_numbers(wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))} must be a whole number"):
        Recipe(**wrong)


@pytest.mark.parametrize("wrong", [{"hospitals": 0}, {"images": 1.5}, {"batch": -1}, {"seed": 2**64}])
def test_a_search_has_whole_numbers(wrong):
    with pytest.raises(UserError, match="must be a whole number"):
        Search(**wrong)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"batch": 2.5}, {"workers": 0}, {"most_pixels": "all"}])
def test_a_folder_is_predicted_with_whole_numbers(wrong, disc_model, tmp_path):
    with pytest.raises(UserError, match=f"{next(iter(wrong))} must be a whole number, at least 1"):
        predict(disc_model, Path("nowhere"), tmp_path / "out", method="norm", **wrong)
    assert not (tmp_path / "out").exists()
