"""Answers averaged over views: the same rules for every method, checked over `METHODS`."""

import copy

import pytest
import torch
import torch.nn.functional as F

from ttdg.adaptation import (
    METHODS,
    Counting,
    FrozenPredictor,
    Resumable,
    SelfAssessing,
    SiteLearner,
    adapt,
    build_adapter,
    defaults,
    effective_views,
)
from ttdg.adaptation.answer_views import AnswerView, AveragedAnswers, with_views
from ttdg.errors import UserError

ALL = sorted(METHODS)
WRAPPED = [name for name in ALL if not METHODS[name].flips]
BUILT_IN = [name for name in ALL if METHODS[name].flips]


def some_images(seed: int = 1, size: int = 16, count: int = 4) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed)) + 1


def pair(ready, name, views="flips"):
    """The same method without and with views, around the same source."""
    return ready(name).quick(name), ready(name).quick(name, views=views)


def values(adapter):
    return {key: value.clone() for key, value in adapter.network.state_dict().items()}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("views", ["flips", pytest.param("scales", marks=pytest.mark.slow)])
def test_views_change_no_state_of_the_method(name, views, ready):
    """After two batches with views, the network and the next plain answer are those of a run without views."""
    plain, wrapped = pair(ready, name, views)
    for seed in range(2):
        plain(some_images(seed))
        wrapped(some_images(seed))
    inner = getattr(wrapped, "adapter", wrapped)
    before, after = values(plain), values(inner)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert torch.equal(plain(some_images(5)), inner(some_images(5)))


@pytest.mark.parametrize("name", WRAPPED)
def test_the_own_answers_of_a_stream_with_views_are_those_without(name, ready):
    plain, wrapped = pair(ready, name)
    heard = []
    wrapped.own_answer = heard.append
    for seed in range(3):
        wrapped(some_images(seed))
        assert torch.equal(plain(some_images(seed)), heard.pop())
    if isinstance(plain, FrozenPredictor):
        wrapped.predict_frozen(some_images(5))
        assert torch.equal(plain.predict_frozen(some_images(5)), heard.pop())


@pytest.mark.parametrize("name", WRAPPED)
def test_the_answer_is_the_mean_of_the_own_answer_and_that_of_the_mirror_image(name, ready):
    plain, wrapped = pair(ready, name)
    images = some_images()
    own = plain(images).softmax(1)
    mirrored = 2 * wrapped(images).softmax(1) - own
    assert mirrored.min() > -1e-5
    assert torch.allclose(mirrored.sum(1), torch.ones(()), atol=1e-4)
    assert not torch.allclose(mirrored, own, atol=1e-6), "the second view is a pass of its own"


def rate_zero(name):
    return {"lr": 0.0} if METHODS[name].predict == "before" and "lr" in defaults(name) else {}


@pytest.mark.parametrize(
    "name", [name for name in WRAPPED if METHODS[name].memory or METHODS[name].backwards]
)
def test_the_state_that_answers_a_view_is_the_one_that_answered_the_image(name, ready):
    """Asked for the image itself, the adapted state repeats the method's answer (before an update: at a rate of 0).

    DeY-Net draws new noise; VPTTA answers with the prompts of its memory; SicTTA finds the image in its pool.
    """
    options = {"copies": 0} if name == "deynet" else {"lr": 0.0} if name == "vptta" else {}
    adapter = ready(name).quick(name, views="flips", **{**rate_zero(name), **options})
    images = some_images()
    answer = adapter.adapter(images)
    if name != "sictta":
        assert torch.allclose(adapter._answer(images).softmax(1), answer.softmax(1), atol=1e-5)


@pytest.mark.parametrize("name", ["source", "norm", "alpha-bn", "intent"])
def test_a_method_without_state_answers_a_mirror_image_as_its_mirror_image(name, ready):
    _, wrapped = pair(ready, name)
    images = some_images()
    assert torch.allclose(wrapped(images.flip(3)), wrapped(images).flip(3), atol=1e-4)


def test_three_scales_are_six_passes_of_the_network_by_hand(ready):
    source = ready("source")
    images = some_images(size=64)
    members = []
    for side in (64, 48, 80):
        scaled = (
            F.interpolate(images, (side, side), mode="bilinear", antialias=side < 64)
            if side != 64
            else images
        )
        for mirrored in (False, True):
            logits = source.adapt("source")(scaled.flip(3) if mirrored else scaled)
            logits = F.interpolate(logits, (64, 64), mode="bilinear") if side != 64 else logits
            members.append((logits.flip(3) if mirrored else logits).softmax(1))
    answer = source.adapt("source", views="scales")(images).softmax(1)
    assert torch.allclose(answer, torch.stack(members).mean(0), atol=1e-6)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_method_that_mirrors_its_images_itself_is_left_as_it_is_and_scaled_only(name, ready):
    plain, same = pair(ready, name)
    assert type(same) is type(plain)
    assert effective_views(METHODS[name], "flips") == "plain"
    scaled = ready(name).quick(name, views="scales")
    assert [(view.scale, view.mirrored) for view in scaled.views] == [
        (1.0, False),
        (0.75, False),
        (1.25, False),
    ]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_method_with_built_in_flips_passes_mirror_images_through_its_network(name, ready):
    source, images, seen = ready(name), some_images(size=32), []  # a size that is not padded
    first = next(module for module in source.network.modules() if isinstance(module, torch.nn.Conv2d))
    first.register_forward_pre_hook(lambda module, inputs: seen.extend(inputs[0]))
    source.adapt(name)(images)
    assert any(x.shape == images[0].shape and torch.allclose(x, images[0].flip(2), atol=1e-6) for x in seen)


@pytest.mark.parametrize("name", ALL)
def test_abilities_are_those_of_the_method(name, ready):
    plain, wrapped = pair(ready, name, "scales")
    for ability in (SiteLearner, Resumable, SelfAssessing, Counting):
        assert isinstance(wrapped, ability) is isinstance(plain, ability)
    assert isinstance(wrapped, FrozenPredictor)


@pytest.mark.parametrize("name", [name for name in ALL if name in ("judge", "universe-choice", "universe")])
def test_the_assessment_is_that_of_the_images_and_not_of_another_view(name, ready):
    plain, wrapped = pair(ready, name, "scales")
    images = some_images()
    assert wrapped.assessment() is None
    plain(images), wrapped(images)
    assert torch.equal(plain.assessment().dice, wrapped.assessment().dice)
    assert plain.assessment().choices == wrapped.assessment().choices
    wrapped.reset()
    assert wrapped.assessment() is None


def test_a_copy_of_an_adapter_has_an_assessment_of_its_own(ready):
    wrapped = ready("judge").quick("judge", views="scales")
    wrapped(some_images(1))
    copied = copy.deepcopy(wrapped)
    copied(some_images(2, count=3))
    assert [len(each.assessment().dice) for each in (wrapped, copied)] == [4, 3]


def test_a_learner_learns_resumes_and_resets_through_its_views(ready):
    source, images = ready("self-training"), some_images()
    options = {"steps": 1, "folder_steps": 2, "draw": 4}
    learner, other = (source.adapt("self-training", views="flips", **options) for _ in range(2))
    learner.learn([images])
    frozen = learner.predict_frozen(images)
    other.load_state(learner.state())
    assert torch.equal(other.predict_frozen(images), frozen)
    teacher = copy.deepcopy(learner.adapter.teacher)
    with torch.no_grad():
        mean = (teacher(images).softmax(1) + teacher(images.flip(3)).flip(3).softmax(1)) / 2
    assert torch.allclose(frozen.softmax(1), mean, atol=1e-6)
    learner.reset()
    assert torch.equal(learner.predict_frozen(images), source.adapt("source", views="flips")(images))


def test_events_are_counted_once(ready):
    plain, wrapped = pair(ready, "sar")
    for seed in range(3):
        plain(some_images(seed)), wrapped(some_images(seed))
    assert wrapped.counts == plain.counts
    assert wrapped.counts["steps"] + wrapped.counts["skipped"] == 3


@pytest.mark.parametrize("labels", [1, 3])
def test_sigmoid_channels_are_averaged_one_by_one(labels, ready):
    source, images = ready("tent", labels=labels), some_images()
    answer = source.adapt("tent", views="flips", head="sigmoid", lr=0.0)(images).sigmoid()
    plain = source.adapt("tent", head="sigmoid", lr=0.0)
    mean = (plain(images).sigmoid() + plain(images.flip(3)).flip(3).sigmoid()) / 2
    assert torch.allclose(answer, mean, atol=1e-6)


@pytest.mark.parametrize("views", ["flips", "scales"])
@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (2, 3, 24, 10), (1, 3, 1, 1)])
def test_an_image_of_any_size_keeps_its_size(views, shape, ready):
    for name in ("source", "tent"):
        answer = ready(name).adapt(name, views=views)(torch.rand(shape))
        assert answer.shape == (shape[0], 2, *shape[2:])
        assert answer.isfinite().all()


def test_a_view_and_its_inverse_give_the_image_back():
    images = some_images(size=16)
    assert torch.equal(AnswerView(1.0, True).inverse(AnswerView(1.0, True)(images), images.shape[2:]), images)
    assert AnswerView(0.75)(images).shape[2:] == (12, 12)
    assert (
        AnswerView(1.25, True).inverse(AnswerView(1.25, True)(images), images.shape[2:]).shape == images.shape
    )


def test_a_number_is_the_methods_own_option_and_a_mapping_can_hold_both(ready):
    assert adapt(ready("memo").network, "memo", views=4).views == 4
    both = build_adapter(ready("memo").network, "memo", {"views": 4}, "flips")
    assert isinstance(both, AveragedAnswers)
    assert both.adapter.views == 4
    assert adapt(ready("source").network, "source", views="plain").__class__.__name__ == "Fixed"


def test_unknown_views_are_refused_with_the_nearest_name(ready):
    with pytest.raises(UserError, match="unknown views 'flip'; did you mean 'flips'"):
        ready("source").adapt("source", views="flip")
    with pytest.raises(UserError, match="unknown views"):
        with_views(ready("source").adapt("source"), METHODS["source"], "mirror")
