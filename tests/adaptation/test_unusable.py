"""Images with values that are not finite, or far too large, between good images; and empty batches.

The oracle is the same method on the same stream without those images: all answers must be equal, bit for bit.
"""

import warnings

import pytest
import torch

from ttdg.adaptation import METHODS
from ttdg.adaptation.adapter import SelfAssessing, SiteLearner
from ttdg.adaptation.unusable import LIMIT, UNUSABLE, usable

VALUES = (float("nan"), float("inf"), 1e18, -3e38)
LEARNERS = ("self-training", "universe")

pytestmark = pytest.mark.filterwarnings("ignore:.*answered with zeros:RuntimeWarning")


def good(seed: int, count: int = 3) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def with_bad(images: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The images with four bad ones between them, of which one pixel is wrong; and the places of the good ones."""
    bad = good(99, len(VALUES))
    bad[range(len(VALUES)), 1, 3, 3] = torch.tensor(VALUES)
    order = [images[0], bad[0], bad[1], images[1], bad[2], images[2], bad[3]]
    return torch.stack(order), [0, 3, 5]


@pytest.mark.parametrize("name", METHODS)
def test_good_images_around_bad_ones_keep_their_answers(name, ready):
    clean, hostile = ready(name).quick(name), ready(name).quick(name)
    assert hostile(good(0)[:0]).shape == (0, 2, 16, 16)
    answers = hostile(torch.full((2, 3, 16, 16), 3e38))
    assert answers.shape == (2, 2, 16, 16)
    assert not answers.any()
    images, places = with_bad(good(0))
    answers, expected = hostile(images), clean(good(0))
    assert torch.equal(answers[places], expected)
    assert not answers[[1, 2, 4, 6]].any()
    if isinstance(clean, SelfAssessing):
        assert torch.equal(hostile.assessment().dice[places], clean.assessment().dice)
    if METHODS[name].memory:
        assert torch.equal(hostile(good(1)), clean(good(1)))


@pytest.mark.parametrize("views", ["flips", "scales"])
@pytest.mark.parametrize("name", ["norm", "tent", "judge"])
def test_averaged_views_of_good_images_do_not_depend_on_a_bad_one(name, views, ready):
    clean, hostile = (ready(name).quick(name, views=views) for _ in range(2))
    images, places = with_bad(good(0))
    answers = hostile(images)
    assert torch.equal(answers[places], clean(good(0)))
    assert answers.isfinite().all()


@pytest.mark.parametrize("name", LEARNERS)
def test_a_site_with_a_bad_image_is_learned_as_without_it(name, ready):
    clean, hostile = (ready(name).quick(name, folder_steps=2, draw=4) for _ in range(2))
    assert isinstance(hostile, SiteLearner)
    clean.learn([good(0)])
    hostile.learn([good(0)[:0], torch.full((1, 3, 16, 16), float("nan")), with_bad(good(0))[0]])
    assert torch.equal(hostile.predict_frozen(good(1)), clean.predict_frozen(good(1)))


def test_an_unusable_image_is_expected_to_have_no_overlap(ready):
    adapter = ready("judge").quick("judge")
    images, places = with_bad(good(0))
    adapter(images)
    found = adapter.assessment()
    assert [i for i, choice in enumerate(found.choices) if choice != UNUSABLE] == places
    assert found.dice[1] == found.unadapted[1] == 0
    assert (found.unadapted[places] > 0).all()
    adapter(good(0))
    assert UNUSABLE not in adapter.assessment().choices
    adapter.reset()
    assert adapter.assessment() is None


def test_the_user_is_told_of_unusable_images(ready):
    with pytest.warns(RuntimeWarning, match="4 of 7 images hold values that are not finite"):
        ready("source").quick("source")(with_bad(good(0))[0])


def test_images_of_any_camera_are_usable_and_give_no_warning(ready):
    images = torch.stack(
        [torch.zeros(3, 4, 4), torch.full((3, 4, 4), 65535.0), torch.full((3, 4, 4), -LIMIT)]
    )
    assert usable(images).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ready("source").quick("source")(images)
