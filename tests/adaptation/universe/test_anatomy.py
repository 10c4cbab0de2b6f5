"""Source labels say whether structures are steady, varied, sometimes absent or thin, and the method acts on it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.adaptation.universe.anatomy import CHUNK, anatomy_of
from ttdg.errors import UserError


def squares(sides: list[int], size: int = 48) -> torch.Tensor:
    """One image for each side, with a square of that side; label 2 inside label 1."""
    masks = torch.zeros(len(sides), size, size, dtype=torch.uint8)
    for mask, side in zip(masks, sides, strict=True):
        mask[4 : 4 + side, 4 : 4 + side] = 1
        mask[6 : 4 + side // 2, 6 : 4 + side // 2] = 2
    return masks


def lines(width: int, count: int = 6, size: int = 48) -> torch.Tensor:
    """Images with a vertical line of the given width every twelve pixels."""
    masks = torch.zeros(count, size, size, dtype=torch.uint8)
    for column in range(2, size - width, 12):
        masks[:, :, column : column + width] = 1
    return masks


@given(side=st.integers(14, 40), more=st.lists(st.integers(-1, 1), min_size=1, max_size=2 * CHUNK))
@settings(max_examples=25, deadline=None)
def test_squares_of_almost_one_size_are_steady(side, more):
    assert anatomy_of([squares([side + x for x in more])]) == "steady"


def test_structures_that_are_large_in_some_images_and_small_in_others_are_varied():
    assert anatomy_of([squares([14, 40, 15, 38])]) == "varied"


@pytest.mark.parametrize("sides", [[30, 31, 0], [14, 40, 0]])
def test_structures_that_are_missing_from_every_third_image_are_sometimes_absent(sides):
    assert anatomy_of([squares(sides)]) == "absent"


def test_one_empty_image_of_thirty_changes_nothing():
    assert anatomy_of([squares([30] * 29 + [0])]) == "steady"
    assert anatomy_of([squares([14, 40] * 14 + [14, 0])]) == "varied"


def test_sites_whose_structures_differ_in_size_are_varied_together():
    small, large = squares([14] * 4), squares([40] * 4)
    assert anatomy_of([small]) == anatomy_of([large]) == "steady"
    assert anatomy_of([small, large]) == "varied"


@pytest.mark.parametrize(("width", "kind"), [(1, "thin"), (2, "thin"), (3, "thin"), (6, "steady")])
def test_lines_are_thin_up_to_a_width_of_three_pixels(width, kind):
    assert anatomy_of([lines(width)]) == kind


def test_the_order_of_images_and_sites_does_not_matter():
    masks = squares([14, 20, 30, 25, 18])
    assert anatomy_of([masks]) == anatomy_of([masks.flip(0)]) == anatomy_of([masks[3:], masks[:3]])


def test_labels_without_any_structure_are_steady():
    assert anatomy_of([torch.zeros(3, 8, 8, dtype=torch.uint8)]) == "steady"


def with_anatomy(source, kind):
    """The source model, with a judge that was fitted to this anatomy; None for a judge of an earlier version."""
    judge = source.parts["judge"]
    learning = {name: value for name, value in judge.settings["learning"].items() if name != "anatomy"}
    learning |= {} if kind is None else {"anatomy": kind}
    part = replace(judge, settings={**judge.settings, "learning": learning})
    return replace(source, parts={**source.parts, "judge": part})


@pytest.mark.parametrize(
    ("kind", "carried"), [("steady", 0.5), ("varied", 0.0), ("absent", 0.0), ("thin", 0.0)]
)
def test_labels_are_carried_where_structures_are_steady(source, quick, kind, carried):
    assert with_anatomy(source, kind).adapt("universe", **quick).carried == carried


@pytest.mark.parametrize(
    ("kind", "rule"), [("steady", "adapted"), ("varied", "agreement"), ("absent", "judge")]
)
def test_the_anatomy_decides_who_answers_unless_the_option_names_a_rule(source, quick, kind, rule):
    model = with_anatomy(source, kind)
    learner = model.adapt("universe", **quick)
    assert learner.rule == rule
    assert learner.site_judge is not None
    for named in ("agreement", "judge", "adapted"):
        assert model.adapt("universe", choice=named, **quick).rule == named


@pytest.mark.parametrize("whole", [True, False])
def test_thin_structures_are_not_learned_and_the_judge_answers(source, away, quick, weights, whole):
    learner, images = with_anatomy(source, "thin").adapt("universe", **quick), away(0)
    assert learner.remarks() == ()
    if whole:
        learner.learn([images])
    answer = learner.predict_frozen(images) if whole else learner(images)
    assert torch.equal(answer, source.adapt("judge")(images))
    assert torch.equal(weights(learner.network), weights(source.network))
    assert "thin" in learner.remarks()[0]


def test_the_option_overrides_what_the_fit_measured(source, away, quick):
    varied, thin = with_anatomy(source, "varied"), with_anatomy(source, "thin")
    assert varied.adapt("universe", anatomy="steady", **quick).carried == 0.5
    learner = thin.adapt("universe", anatomy="varied", **quick)
    learner.learn([away(0)])
    assert learner.steps_taken[0] > 0


@pytest.mark.parametrize("kind", ["round", None])
def test_a_judge_without_a_known_anatomy_is_refused_in_words_unless_the_option_names_one(source, quick, kind):
    with pytest.raises(UserError, match="fit the part 'judge' again"):
        with_anatomy(source, kind).adapt("universe", **quick)
    assert with_anatomy(source, kind).adapt("universe", anatomy="steady", **quick).carried == 0.5


def test_a_site_of_thin_structures_resumes_from_its_saved_state(source, away, quick):
    first, second = (with_anatomy(source, "thin").adapt("universe", **quick) for _ in range(2))
    first.learn([away(0), away(1)])
    second.load_state(first.state())
    assert torch.equal(first.predict_frozen(away(2)), second.predict_frozen(away(2)))
    assert second.remarks() == first.remarks() != ()
