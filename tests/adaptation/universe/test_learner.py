"""The learner of method "universe": when it learns, from which labels, and which candidate it answers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional as F

from ttdg.adaptation import Resumable, SiteLearner
from ttdg.adaptation.judge.regressor import Prediction
from ttdg.adaptation.site_learning.home import HomeStatistics, describe
from ttdg.adaptation.site_learning.soft_labels import sharpen
from ttdg.adaptation.universe.site_judge import ADAPTED, CANDIDATES
from ttdg.data.transforms import normalise

QUICK = {"steps": 1, "folder_steps": 4, "draw": 2, "rate": 10.0}
WARM_UP = 2  # steps with which the judge of these tests was fitted


def unit_batch(seed: int, count: int = 2, light: float = 1.0) -> Tensor:
    return light * torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def away(seed: int, count: int = 2) -> Tensor:
    """Dark images in ImageNet's normalisation; they are not like home."""
    return normalise(unit_batch(seed, count, light=0.2), "imagenet")


def at_home(seed: int, count: int = 2) -> Tensor:
    return normalise(unit_batch(seed, count), "imagenet")


@pytest.fixture
def source(ready):
    """A source model whose home is a site of bright noise."""
    source = ready("universe")
    home = HomeStatistics.of([describe(unit_batch(1000, 128))])
    judge = source.parts["judge"]
    tensors = {**judge.tensors, "home.mean": home.mean, "home.deviation": home.deviation}
    return replace(source, parts={**source.parts, "judge": replace(judge, tensors=tensors)})


class Expecting(torch.nn.Module):
    """A regressor that expects the same Dice of the candidates in every image."""

    def __init__(self, *dice: float) -> None:
        super().__init__()
        self.dice = torch.tensor(dice)

    def predict(self, x: Tensor) -> Prediction:
        dice = self.dice.expand(len(x), -1)
        return Prediction(dice, torch.full_like(dice, 0.1), dice.expand(8, -1, -1))


NEUTRAL = Expecting(0.5, 0.5, 0.5)  # every image keeps the fallback


def both_ways(network, images: Tensor) -> Tensor:
    """Log-probabilities, averaged over the image and its mirror image."""
    with torch.no_grad():
        upright, mirrored = network(images).softmax(1), network(images.flip(3)).softmax(1)
    return ((upright + mirrored.flip(3)) / 2).log()


def judged(source, images: Tensor) -> Tensor:
    return source.adapt("judge")(images).log_softmax(1)


def weights(network) -> Tensor:
    return torch.cat([value.flatten() for value in network.state_dict().values()])


def same(one, two) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


# --- whether a site is learned


def test_a_site_like_home_is_not_learned_and_the_judge_answers(source):
    adapter = source.adapt("universe", **QUICK)
    assert isinstance(adapter, SiteLearner)
    assert isinstance(adapter, Resumable)
    adapter.learn(at_home(seed, 8) for seed in range(2))
    assert adapter.like_home
    assert torch.equal(adapter.predict_frozen(at_home(9)), source.adapt("judge")(at_home(9)))
    adapter.reset()
    for seed in range(2):
        assert torch.equal(adapter(at_home(seed, 8)), source.adapt("judge")(at_home(seed, 8)))
    assert adapter.steps_taken.tolist() == [0, 0]
    assert torch.equal(weights(adapter.network), weights(source.network))
    twin = source.adapt("judge")
    twin(at_home(1, 8))
    assert adapter.assessment().choices == twin.assessment().choices
    assert torch.equal(adapter.assessment().dice, twin.assessment().dice)


def test_another_site_is_learned_while_the_network_of_the_judge_stays_the_source(source):
    adapter, seen = source.adapt("universe", **QUICK), []
    adapter.learn((away(seed) for seed in range(2)), lambda done, total: seen.append((done, total)))
    assert not adapter.like_home
    assert seen == [(step, 4) for step in range(1, 5)]
    assert adapter.steps_taken[0] == 4
    for network in (adapter.network, adapter.teacher):
        assert not torch.equal(weights(network), weights(source.network))
    assert torch.equal(weights(adapter.reader.judge.network), weights(source.network))
    assert torch.equal(adapter.reader.judge(away(9)), source.adapt("judge")(away(9)))


def test_a_site_like_home_is_learned_when_it_is_asked_for_always(source):
    adapter = source.adapt("universe", **QUICK)
    adapter.learn_always([at_home(0, 4)])
    assert adapter.steps_taken[0] == 4


@pytest.mark.parametrize("choice", [True, False])
def test_an_empty_folder_changes_nothing(source, choice):
    adapter = source.adapt("universe", choice=choice, **QUICK)
    adapter.learn(iter(()))
    assert torch.equal(adapter.predict_frozen(away(0)), source.adapt("judge")(away(0)))


# --- the answer


def test_the_online_stream_keeps_the_judges_answer_until_enough_steps_were_taken(source):
    adapter = source.adapt("universe", **QUICK)
    adapter.site_judge.regressor = NEUTRAL
    for step in range(1, 4):
        images = away(step)
        answer = adapter(images)
        warm = step >= WARM_UP
        expected = both_ways(adapter.teacher, images) if warm else judged(source, images)
        assert torch.allclose(answer, expected, atol=1e-4), step
        assert (adapter.assessment().choices == (CANDIDATES[ADAPTED],) * 2) is warm
    assert not torch.allclose(both_ways(adapter.teacher, images), judged(source, images), atol=1e-3)


def test_without_a_choice_the_adapted_network_answers_from_the_first_step(source):
    adapter = source.adapt("universe", choice=False, **QUICK)
    for step in range(2):
        answer = adapter(away(step))
        assert torch.allclose(answer, both_ways(adapter.teacher, away(step)), atol=1e-4)
        assert not torch.equal(weights(adapter.teacher), weights(source.network))
    assert adapter.assessment() is None


@pytest.mark.parametrize("gain", [-0.1, 0.1])
def test_the_gain_that_is_expected_of_the_whole_site_decides_the_fallback(source, gain):
    adapter = source.adapt("universe", **QUICK)
    adapter.site_judge.regressor = Expecting(0.5, 0.5 + gain, 0.5)
    adapter.learn(away(seed, 3) for seed in range(2))
    assert adapter.gains[-1] == 6  # images
    assert torch.allclose(adapter.gains[:-1], torch.tensor(6 * gain), atol=1e-5)
    assert adapter.gaining is (gain > 0)
    adapter.site_judge.regressor = NEUTRAL
    expected = both_ways(adapter.teacher, away(9)) if gain > 0 else judged(source, away(9))
    assert torch.allclose(adapter.predict_frozen(away(9)), expected, atol=1e-4)


@pytest.mark.parametrize("best", range(3))
def test_the_candidate_with_the_best_expected_dice_is_answered(source, best):
    adapter = source.adapt("universe", **QUICK)
    adapter.learn([away(0)])
    adapter.site_judge.regressor = Expecting(*(0.8 if i == best else 0.5 for i in range(3)))
    one, two = judged(source, away(9)), both_ways(adapter.teacher, away(9))
    mean = ((one.exp() + two.exp()) / 2).log()
    assert torch.allclose(adapter.predict_frozen(away(9)), (one, two, mean)[best], atol=1e-4)
    assert adapter.assessment().choices == (CANDIDATES[best],) * 2
    assert torch.equal(adapter.assessment().dice, torch.full((2,), 0.8))


@pytest.fixture(scope="module")
def counting(ready):
    return ready("universe").adapt("universe", **QUICK)


@given(gains=st.lists(st.floats(-0.2, 0.2), min_size=8, max_size=8), images=st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_the_source_is_kept_only_if_the_members_agree_on_a_loss(counting, gains, images):
    counting.reset()
    counting.gains.copy_(torch.tensor([images * gain for gain in gains] + [images]))
    bound = np.mean(gains) + 2 * np.std(gains, ddof=1)
    if abs(bound) > 1e-5:
        assert counting.gaining is bool(bound > 0)


# --- labels


def test_the_students_first_labels_are_the_judges(source):
    adapter = source.adapt("universe", carried=0.0, weigh=False, first=0.5, **QUICK)
    images = away(0, 3)
    adapter._remember(images)
    rows = torch.tensor([2, 0])
    p = source.adapt("judge")(images).softmax(1)[rows]
    small = p.reshape(2, 2, 16, 2, 16, 2).mean((3, 5))
    p = F.interpolate(small, size=(32, 32), mode="bilinear")
    expected = sharpen(p, 2.0, "softmax", keep_areas=True)
    for step in range(4):
        adapter.steps_taken[0] = step
        labels, share, image_weights = adapter._guide(rows)
        if step < 2:  # half of the folder steps
            assert torch.allclose(labels, expected, atol=0.02)
            assert torch.equal(share, torch.ones(2, 1, 1, 1))
        else:
            assert torch.equal(share, torch.zeros(2, 1, 1, 1))
        assert torch.equal(image_weights, torch.ones(2, 1, 32, 32))


def test_carried_labels_have_the_largest_share_in_the_least_sure_image(source):
    adapter = source.adapt("universe", carried=0.6, first=0.25, **QUICK)
    adapter._remember(away(0, 3))
    adapter.memory.columns["expected"][:3] = torch.tensor([0.9, 0.1, 0.5])
    adapter.memory.columns["judged"][:3] = torch.tensor([255, 0]).view(2, 1, 1)  # background
    adapter.memory.columns["carried"][:3] = torch.tensor([0, 255]).view(2, 1, 1)  # structure
    rows = torch.arange(3)
    labels, share, image_weights = adapter._guide(rows)
    assert torch.allclose(labels[:, 1].mean((1, 2)), torch.tensor([0.0, 0.6, 0.3]), atol=1e-3)
    assert torch.equal(share, torch.ones(3, 1, 1, 1))
    squares = torch.tensor([0.9, 0.1, 0.5]) ** 2
    assert torch.allclose(image_weights[:, 0, 0, 0], squares / squares.mean(), rtol=1e-4)
    adapter.steps_taken[0] = 1  # the first quarter is over
    labels, share, _ = adapter._guide(rows)
    assert torch.allclose(share.flatten(), torch.tensor([0.0, 0.6, 0.3]))
    assert (labels[:, 1] > 0.99).all()


def test_learning_with_all_labels_from_the_judge_brings_the_student_to_them(source):
    """The judge's labels are replaced by the structure everywhere."""
    adapter = source.adapt("universe", carried=0.0, first=1.0, **{**QUICK, "rate": 100.0, "folder_steps": 12})
    remember = adapter._remember

    def store_structures(images):
        remember(images)
        adapter.memory.columns["judged"][: len(adapter.memory)] = torch.tensor([0, 255]).view(2, 1, 1).byte()

    adapter._remember = store_structures
    adapter.learn([away(0)])
    after, before = (
        network(away(0)).softmax(1)[:, 1].mean() for network in (adapter.network, source.network)
    )
    assert after > 0.9
    assert before < 0.8


# --- variants


@pytest.mark.parametrize("variant", ["full", "random-universe", "no-universe"])
def test_every_variant_learns_and_answers(source, variant):
    adapter = source.adapt("universe", variant=variant, **QUICK)
    adapter.learn([away(0), away(1)])
    assert adapter(away(2)).isfinite().all()
    moved = not torch.equal(adapter.site.points, adapter.source.points)
    assert moved is (variant != "no-universe")
    learned = source.adapt("universe", **QUICK).prior.universe
    assert torch.equal(adapter.prior.universe, learned) is (variant != "random-universe")
    names = [*adapter.site_judge.names, *adapter.reader.judge.signal_names]
    assert any(name.startswith("universe") for name in names) is (variant == "full")


# --- state


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_stream_continued_from_a_saved_state_equals_the_uninterrupted_stream(source, before):
    whole, first, second = (source.adapt("universe", capacity=5, **QUICK) for _ in range(3))
    expected = [whole(away(seed)) for seed in range(before + 2)]
    for seed in range(before):
        first(away(seed))
    second.load_state(load(save(first.state())))
    found = [second(away(seed)) for seed in range(before, before + 2)]
    assert all(torch.equal(a, b) for a, b in zip(expected[before:], found, strict=True))
    assert same(whole.state(), second.state())


def test_a_learned_folder_is_saved_and_answers_as_before(source):
    adapter, other = (source.adapt("universe", **QUICK) for _ in range(2))
    for each in (adapter, other):
        each.site_judge.regressor = Expecting(0.5, 0.4, 0.5)  # the site is expected to lose
    adapter.learn(away(seed) for seed in range(2))
    other.load_state(load(save(adapter.state())))
    assert torch.equal(adapter.predict_frozen(away(9)), other.predict_frozen(away(9)))
    assert not adapter.gaining
    assert not other.gaining
    assert torch.equal(adapter(away(8)), other(away(8)))
    assert same(adapter.state(), other.state())


def test_reset_restores_the_source_bit_for_bit_and_repeats_the_stream(source):
    adapter = source.adapt("universe", **QUICK)
    fresh = adapter.state()
    first = [adapter(away(seed)) for seed in range(3)]
    assert not same(adapter.state(), fresh)
    adapter.reset()
    assert same(adapter.state(), fresh)
    assert adapter.assessment() is None
    assert all(torch.equal(adapter(away(seed)), answer) for seed, answer in enumerate(first))
    adapter.learn([away(5)])
    adapter.reset()
    assert same(adapter.state(), fresh)


def test_predictions_of_a_frozen_state_leave_it_unchanged(source):
    adapter = source.adapt("universe", **QUICK)
    adapter.learn([away(0)])
    before = adapter.state()
    assert torch.equal(adapter.predict_frozen(away(1)), adapter.predict_frozen(away(1)))
    assert same(adapter.state(), before)


# --- broken images


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_image_is_not_stored_and_does_not_disturb_what_is_known_of_the_site(source, value):
    adapter, other = (source.adapt("universe", **QUICK) for _ in range(2))
    images = away(0, 3)
    images[1, 0, 4, 4] = value
    adapter._remember(images)
    other._remember(images[[0, 2]])
    assert len(adapter.memory) == 2
    assert adapter.memory.normalised == other.memory.normalised == "imagenet"
    assert torch.allclose(adapter.described, other.described, rtol=1e-4)
    assert adapter.described[-1] == 2
    assert torch.equal(
        adapter.memory.note("carried", torch.arange(2)), other.memory.note("carried", torch.arange(2))
    )
    adapter(away(1))
    assert weights(adapter.network).isfinite().all()


def test_a_stream_of_broken_images_alone_learns_nothing(source):
    adapter = source.adapt("universe", **QUICK)
    adapter(torch.full((2, 3, 32, 32), torch.nan))
    assert len(adapter.memory) == 0
    assert adapter.steps_taken.tolist() == [0, 0]
    assert adapter.described.tolist() == [0.0] * 10
