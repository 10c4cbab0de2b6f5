"""Images with values that are not finite, or far too large, and frames that show nothing, between good images.

The oracle is the same method on the same stream without those images: all answers must be equal, bit for bit.
"""

import warnings

import pytest
import torch
from torch.nn import functional as F

from ttdg.adaptation import METHODS, empty_frames
from ttdg.adaptation.adapter import SelfAssessing, SiteLearner
from ttdg.adaptation.empty_frames import shows_nothing
from ttdg.adaptation.unusable import LIMIT, UNUSABLE, usable

VALUES = (float("nan"), float("inf"), 1e18, -3e38)
LEARNERS = ("self-training", "universe")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*answered with zeros:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*show nothing but one value or noise:RuntimeWarning"),
]


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


def smooth(seed: int, count: int = 3, side: int = 16) -> torch.Tensor:
    coarse = torch.randn(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(coarse, size=side, mode="bilinear")


def empty(side: int = 16) -> torch.Tensor:
    """Black, grey, one colour, saturated, and noise: small, in [0, 1], and large."""
    noise = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(3))
    noise = torch.stack([noise[0], (noise[1] > 0).float(), 1e4 * noise[2]])
    constant = torch.tensor([[0.0, 0, 0], [0.5, 0.5, 0.5], [0.1, 0.9, 0.2], [255, 255, 255]])
    return torch.cat([constant[:, :, None, None].expand(-1, -1, side, side), noise])


@pytest.mark.parametrize("name", METHODS)
def test_good_images_around_frames_that_show_nothing_keep_their_answers(name, ready, monkeypatch):
    monkeypatch.setattr(empty_frames, "LEAST_SIDE", 16)
    model = ready(name)
    clean, hostile = model.quick(name), model.quick(name)
    alone = model.network(empty())
    assert torch.allclose(hostile(empty()), alone, atol=1e-5)
    images, expected = smooth(0), clean(smooth(0))
    answers = hostile(torch.cat([images[:1], empty(), images[1:]]))
    assert torch.equal(answers[[0, -2, -1]], expected)
    assert torch.allclose(answers[1:-2], alone, atol=1e-5)
    if METHODS[name].memory:
        assert torch.equal(hostile(smooth(1)), clean(smooth(1)))


@pytest.mark.parametrize("side", [96, 352])
def test_frames_that_show_nothing_are_told_from_images_at_any_scale_and_offset(side):
    for scale, offset in ((1, 0), (1e-3, 0), (100, 50), (-1, 3)):
        assert shows_nothing(scale * empty(side) + offset).all()
        assert not shows_nothing(scale * smooth(0, 8, side) + offset).any()
    stripes = (torch.arange(side) // 8 % 2).float().expand(1, 3, side, side)
    assert not shows_nothing(torch.cat([stripes, stripes.mT])).any()
    volume = torch.stack([smooth(0, 3, side), empty(side)[:3]]).movedim(1, 2)
    assert shows_nothing(volume).tolist() == [False, True]


@pytest.mark.parametrize("views", ["flips", "scales"])
@pytest.mark.parametrize("name", ["norm", "tent", "judge"])
def test_averaged_views_of_good_images_do_not_depend_on_a_bad_one(name, views, ready):
    clean, hostile = (ready(name).quick(name, views=views) for _ in range(2))
    images, places = with_bad(good(0))
    answers = hostile(images)
    assert torch.equal(answers[places], clean(good(0)))
    assert answers.isfinite().all()


@pytest.mark.parametrize("name", LEARNERS)
def test_a_site_with_black_frames_is_learned_as_without_them(name, ready):
    clean, hostile = (ready(name).quick(name, folder_steps=2, draw=4) for _ in range(2))
    clean.learn([good(0)])
    hostile.learn([torch.zeros(2, 3, 16, 16), torch.cat([torch.zeros(1, 3, 16, 16), good(0)])])
    assert torch.equal(hostile.predict_frozen(good(1)), clean.predict_frozen(good(1)))


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
    images = torch.stack([65535 * smooth(0, 1, 16)[0], -LIMIT * torch.eye(16).expand(3, 16, 16)])
    assert usable(images).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ready("norm").quick("norm")(images)
        ready("source").quick("source")(torch.zeros(1, 3, 16, 16))  # nothing is kept away from it


def test_the_user_is_told_of_frames_that_show_nothing(ready):
    with pytest.warns(RuntimeWarning, match="1 of 3 images show nothing but one value or noise"):
        ready("norm").quick("norm")(torch.cat([torch.zeros(1, 3, 16, 16), good(0, 2)]))
