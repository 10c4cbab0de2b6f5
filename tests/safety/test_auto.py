import copy
from dataclasses import replace

import pytest

from ttdg.errors import UserError
from ttdg.newsite import predict
from ttdg.newsite.auto import LEAST_IMAGES, choose_method
from ttdg.newsite.journal import Journal, JournalEntry
from ttdg.safety import measure_drift


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "out")


@pytest.fixture
def drifts(fingerprint, embedded):
    home, away = (measure_drift(fingerprint, [embedded[name]]) for name in ("north", "summit"))
    return {
        "home": home,
        "away": away,
        "foreign": replace(away, verdict="not this kind of image"),
        "unknown": None,
    }


@pytest.mark.parametrize(
    ("site", "images", "method"),
    [
        ("home", 500, "judge"),
        ("away", LEAST_IMAGES, "universe"),
        ("away", LEAST_IMAGES - 1, "judge"),
        ("foreign", 500, "source"),
        ("unknown", 500, "universe"),
    ],
)
def test_the_choice_follows_the_distance_and_the_number_of_images(
    demo, drifts, journal, site, images, method
):
    choice = choose_method(demo, drifts[site], images, journal)
    assert choice.method == method
    assert choice.reason


def test_a_model_without_parts_answers_as_the_source(disc_model, drifts, journal):
    assert choose_method(disc_model, drifts["away"], 500, journal).method == "source"


def test_a_judge_without_learned_hospitals_is_not_asked_to_learn(demo, drifts, journal):
    parts = dict(demo.parts)
    settings = {k: v for k, v in parts["judge"].settings.items() if k != "site_signals"}
    parts["judge"] = replace(parts["judge"], settings=settings)
    model = replace(copy.copy(demo), parts=parts)
    assert choose_method(model, drifts["away"], 500, journal).method == "judge"


def test_auto_is_the_default_and_a_folder_keeps_its_method(demo, hospitals, tmp_path):
    images, out = hospitals / "summit" / "images", tmp_path / "out"
    few = sorted(images.iterdir())[:2]
    first = predict(demo, few, out, overlays=False)
    assert first.method == "judge"
    assert first.choice
    again = predict(demo, few, out, method="auto", overlays=False)
    assert (again.method, again.kept) == ("judge", 2)
    assert "begun" in again.choice


def test_options_need_a_named_method(demo, hospitals, tmp_path):
    with pytest.raises(UserError, match="auto"):
        predict(demo, hospitals / "summit" / "images", tmp_path / "out", options={"margin": 0.1})


def begun(tmp_path, method):
    """The journal of a folder that was begun with a method."""
    journal = Journal(tmp_path / "out")
    journal.run, journal.entries = {"method": method}, {"a.png": JournalEntry("a.png", "done")}
    return journal


@pytest.mark.parametrize("site", ["home", "away", "foreign", "unknown"])
@pytest.mark.parametrize("method", ["source", "judge", "universe", "tent"])
def test_a_folder_that_was_begun_keeps_its_method_at_every_site(demo, drifts, tmp_path, site, method):
    """A judge that the model has got since then is named, unless the images are of another kind."""
    choice = choose_method(demo, drifts[site], 500, begun(tmp_path, method))
    assert choice.method == method
    assert ("--again" in choice.reason) == (method == "source" and site != "foreign")


def test_a_judge_is_not_named_for_a_model_without_one(disc_model, drifts, tmp_path):
    choice = choose_method(disc_model, drifts["away"], 500, begun(tmp_path, "source"))
    assert choice.reason == "the folder was begun with this method"
