"""The learner of method "universe": when it learns, and which candidate it answers."""

import pytest
import torch
import torch.nn.functional as F

from ttdg.adaptation import Resumable, SiteLearner
from ttdg.adaptation.universe import learner as learner_module
from ttdg.adaptation.universe.site_judge import ADAPTED, CANDIDATES

WARM_UP = 2  # steps with which the judge of these tests was fitted


def test_a_site_like_home_is_not_learned_and_the_judge_answers(source, at_home, quick, weights):
    adapter = source.adapt("universe", **quick)
    assert isinstance(adapter, SiteLearner)
    assert isinstance(adapter, Resumable)
    adapter.learn(at_home(seed, 8) for seed in range(2))
    assert adapter.verdict.like_home
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


def test_another_site_is_learned_while_the_network_of_the_judge_stays_the_source(
    source, away, quick, weights
):
    adapter, seen = source.adapt("universe", **quick), []
    adapter.learn((away(seed) for seed in range(2)), lambda done, total: seen.append((done, total)))
    assert not adapter.verdict.like_home
    assert seen == [(step, 4) for step in range(1, 5)]
    assert adapter.steps_taken[0] == 4
    for network in (adapter.network, adapter.teacher):
        assert not torch.equal(weights(network), weights(source.network))
    assert torch.equal(weights(adapter.reader.judge.network), weights(source.network))
    assert torch.equal(adapter.reader.judge(away(9)), source.adapt("judge")(away(9)))


def test_a_site_like_home_is_learned_when_it_is_asked_for_always(source, at_home, quick):
    adapter = source.adapt("universe", **quick)
    adapter.learn_always([at_home(0, 4)])
    assert adapter.steps_taken[0] == 4


@pytest.mark.parametrize("choice", ["measured", "agreement", "judge", "adapted"])
def test_an_empty_folder_changes_nothing(source, choice, away, quick):
    adapter = source.adapt("universe", choice=choice, **quick)
    adapter.learn(iter(()))
    assert torch.equal(adapter.predict_frozen(away(0)), source.adapt("judge")(away(0)))


def test_the_online_stream_keeps_the_judges_answer_until_enough_steps_were_taken(
    source, away, quick, expecting, both_ways, judged
):
    adapter = source.adapt("universe", **quick)
    adapter.site_judge.regressor = expecting(0.5, 0.5, 0.5)
    for step in range(1, 4):
        images = away(step)
        answer = adapter(images)
        warm = step >= WARM_UP
        expected = both_ways(adapter.teacher, images) if warm else judged(source, images)
        assert torch.allclose(answer, expected, atol=1e-4), step
        assert (adapter.assessment().choices == (CANDIDATES[ADAPTED],) * 2) is warm
    assert not torch.allclose(both_ways(adapter.teacher, images), judged(source, images), atol=1e-3)


def test_the_choice_adapted_answers_from_the_first_step_and_expects_nothing(
    source, away, quick, weights, both_ways
):
    adapter = source.adapt("universe", choice="adapted", **quick)
    for step in range(2):
        answer = adapter(away(step))
        assert torch.allclose(answer, both_ways(adapter.teacher, away(step)), atol=1e-4)
        assert not torch.equal(weights(adapter.teacher), weights(source.network))
    assert adapter.assessment() is None


def test_with_scales_the_answer_is_the_mean_over_three_sizes_and_mirror_images(source, away, quick):
    adapter = source.adapt("universe", choice="adapted", **{**quick, "scales": True})
    images = away(0)
    answer = adapter(images)
    total = torch.zeros_like(answer)
    for scale in (0.75, 1.0, 1.25):
        for flip in (False, True):
            view = images.flip(3) if flip else images
            sized = F.interpolate(view, scale_factor=scale, mode="bilinear", antialias=scale < 1)
            with torch.no_grad():
                logits = F.interpolate(adapter.teacher(sized), size=images.shape[2:], mode="bilinear")
            total += (logits.flip(3) if flip else logits).softmax(1)
    torch.testing.assert_close(answer.exp(), total / 6, atol=1e-4, rtol=1e-4)


def test_the_expected_gain_of_a_large_site_is_measured_on_batches_spread_over_it(
    source, away, quick, expecting, monkeypatch
):
    monkeypatch.setattr(learner_module, "SAMPLED", 2)
    adapter, seen = source.adapt("universe", **quick), []
    adapter.site_judge.regressor = expecting(0.5, 0.6, 0.5)
    stored = adapter._stored_images
    monkeypatch.setattr(adapter, "_stored_images", lambda rows: seen.append(rows.tolist()) or stored(rows))
    adapter.learn(away(seed, 4) for seed in range(4))
    assert seen[-2:] == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert adapter.verdict.gains[-1] == 8


@pytest.mark.parametrize("gain", [-0.1, 0.1])
def test_the_gain_that_is_expected_of_the_whole_site_decides_the_fallback(
    source, gain, away, quick, expecting, both_ways, judged
):
    adapter = source.adapt("universe", **quick)
    adapter.site_judge.regressor = expecting(0.5, 0.5 + gain, 0.5)
    adapter.learn(away(seed, 3) for seed in range(2))
    assert adapter.verdict.gains[-1] == 6  # images
    assert torch.allclose(adapter.verdict.gains[:-1], torch.tensor(6 * gain), atol=1e-5)
    assert adapter.verdict.gaining is (gain > 0)
    adapter.site_judge.regressor = expecting(0.5, 0.5, 0.5)
    expected = both_ways(adapter.teacher, away(9)) if gain > 0 else judged(source, away(9))
    assert torch.allclose(adapter.predict_frozen(away(9)), expected, atol=1e-4)


@pytest.mark.parametrize("best", range(3))
def test_the_choice_judge_answers_the_candidate_with_the_best_expected_dice(
    source, best, away, quick, expecting, both_ways, judged
):
    adapter = source.adapt("universe", choice="judge", **quick)
    adapter.learn([away(0)])
    adapter.site_judge.regressor = expecting(*(0.8 if i == best else 0.5 for i in range(3)))
    one, two = judged(source, away(9)), both_ways(adapter.teacher, away(9))
    mean = ((one.exp() + two.exp()) / 2).log()
    assert torch.allclose(adapter.predict_frozen(away(9)), (one, two, mean)[best], atol=1e-4)
    assert adapter.assessment().choices == (CANDIDATES[best],) * 2
    other = source.adapt("judge")
    other(away(9))
    readings = other.assessment()
    unadapted = (readings.dice.float() + (0.5 if best else 0.8)) / 2  # the mean of both judges
    assert torch.allclose(adapter.assessment().unadapted, unadapted, atol=1e-5)
    assert torch.allclose(adapter.assessment().dice, (readings.dice.float() + 0.8) / 2, atol=1e-5)
    site = adapter.site_judge.regressor.predict(torch.zeros(2, 3, 1)).half_width[:, best]
    assert torch.allclose(
        adapter.assessment().half_width, (readings.half_width.float() + site) / 2, atol=1e-5
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_image_is_not_stored_and_does_not_disturb_what_is_known_of_the_site(
    source, value, away, quick, weights
):
    adapter, other = (source.adapt("universe", **quick) for _ in range(2))
    images = away(0, 3)
    images[1, 0, 4, 4] = value
    with pytest.warns(RuntimeWarning, match="not finite"):
        adapter(images)
    other(images[[0, 2]])
    assert len(adapter.memory) == 2
    assert adapter.memory.normalised == other.memory.normalised == "imagenet"
    assert torch.allclose(adapter.verdict.described, other.verdict.described, rtol=1e-4)
    assert adapter.verdict.described[-1] == 2
    assert torch.equal(
        adapter.memory.note("carried", torch.arange(2)), other.memory.note("carried", torch.arange(2))
    )
    adapter(away(1))
    assert weights(adapter.network).isfinite().all()


def test_a_stream_of_broken_images_alone_learns_nothing(source, quick):
    adapter = source.adapt("universe", **quick)
    adapter(torch.full((2, 3, 32, 32), torch.nan))
    assert len(adapter.memory) == 0
    assert adapter.steps_taken.tolist() == [0, 0]
    assert adapter.verdict.described.tolist() == [0.0] * 10
