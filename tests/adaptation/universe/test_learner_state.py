"""The state of the learner of method "universe": saved, continued and reset."""

import pytest
import torch
from safetensors.torch import load, save

from ttdg.errors import UserError

CARRIERS = pytest.mark.parametrize(
    "carrier", ["universe", "neighbours", pytest.param("pairwise", marks=pytest.mark.slow)]
)


@CARRIERS
@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_stream_continued_from_a_saved_state_equals_the_uninterrupted_stream(
    source, carrier, before, away, quick, same
):
    whole, first, second = (source.adapt("universe", capacity=5, carrier=carrier, **quick) for _ in range(3))
    expected = [whole(away(seed)) for seed in range(before + 2)]
    for seed in range(before):
        first(away(seed))
    second.load_state(load(save(first.state())))
    found = [second(away(seed)) for seed in range(before, before + 2)]
    assert all(torch.equal(a, b) for a, b in zip(expected[before:], found, strict=True))
    assert same(whole.state(), second.state())


@CARRIERS
def test_a_learned_folder_is_saved_and_answers_as_before(source, carrier, away, quick, same, expecting):
    adapter, other = (source.adapt("universe", carrier=carrier, **quick) for _ in range(2))
    for each in (adapter, other):
        each.site_judge.regressor = expecting(0.5, 0.4, 0.5)  # the site is expected to lose
    adapter.learn(away(seed) for seed in range(2))
    other.load_state(load(save(adapter.state())))
    assert torch.equal(adapter.predict_frozen(away(9)), other.predict_frozen(away(9)))
    assert not adapter.verdict.gaining
    assert not other.verdict.gaining
    assert torch.equal(adapter(away(8)), other(away(8)))
    assert same(adapter.state(), other.state())


@CARRIERS
def test_reset_restores_the_source_bit_for_bit_and_repeats_the_stream(source, carrier, away, quick, same):
    adapter = source.adapt("universe", carrier=carrier, **quick)
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


def test_predictions_of_a_frozen_state_leave_it_unchanged(source, away, quick, same):
    adapter = source.adapt("universe", **quick)
    adapter.learn([away(0)])
    before = adapter.state()
    assert torch.equal(adapter.predict_frozen(away(1)), adapter.predict_frozen(away(1)))
    assert same(adapter.state(), before)


def test_the_state_of_one_carrier_is_refused_by_another(source, away, quick):
    adapter = source.adapt("universe", **quick)
    adapter(away(0))
    with pytest.raises(UserError, match=r"bank\.features"):
        source.adapt("universe", carrier="neighbours", **quick).load_state(adapter.state())
