"""How much each image and each pixel counts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.adaptation.site_learning.soft_labels import place_weights
from ttdg.adaptation.universe.image_weights import mirror_consistency, structure_confidence

SEEDS = st.integers(0, 999)


def some_labels(
    seed: int, count: int = 3, labels: int = 3, size: int = 8, scale: float = 3.0
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(count, labels, size, size, generator=generator)).softmax(1)


# --- images


@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_confidence_is_the_mean_of_the_largest_probability_inside_the_structures(seed):
    P = some_labels(seed)
    for value, p in zip(structure_confidence(P).tolist(), P, strict=True):
        inside = p.argmax(0) > 0
        assert value == pytest.approx(p.amax(0)[inside].mean().item(), abs=1e-4)


def test_an_image_without_a_structure_has_the_confidence_of_its_background():
    P = torch.tensor([0.9, 0.1]).view(1, 2, 1, 1).expand(1, 2, 4, 4)
    assert structure_confidence(P).item() == pytest.approx(0.9, abs=1e-5)


@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_a_prediction_is_fully_consistent_with_itself_and_less_with_another(seed):
    P, other = some_labels(seed), some_labels(seed + 1000)
    assert torch.allclose(mirror_consistency(P, P), torch.ones(3), atol=1e-5)
    both = mirror_consistency(P, other)
    assert torch.allclose(both, mirror_consistency(other, P))
    assert (both < 1).all()
    assert (both >= 0).all()


@pytest.mark.parametrize("weigh", ["uniform", "confidence", "consistency"])
def test_a_control_of_the_weights_does_not_ask_the_judge(source, away, quick, judged, weigh):
    adapter = source.adapt("universe", weigh=weigh, **quick)
    adapter._remember(away(0, 3))
    values = adapter.memory.note("value", torch.arange(3))
    assert not torch.allclose(values, adapter.memory.note("expected", torch.arange(3)))
    assert ((values >= 0) & (values <= 1 + 1e-6)).all()
    assert (weigh == "uniform") == torch.equal(values, torch.ones(3))


# --- pixels


@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_pixels_where_two_labels_agree_count_more_and_the_mean_is_one(seed):
    labels, reading = some_labels(seed), some_labels(seed + 1000)
    weights = place_weights(labels, reading)
    assert torch.allclose(weights.mean((2, 3)), torch.ones(3, 1), atol=1e-4)
    agreement = torch.einsum("nlyx,nlyx->nyx", labels, reading)
    assert torch.equal(weights[:, 0].flatten(1).argmax(1), agreement.flatten(1).argmax(1))


def test_a_reading_that_says_nothing_weighs_all_pixels_alike():
    assert torch.allclose(
        place_weights(some_labels(0), torch.full((3, 3, 8, 8), 1 / 3)), torch.ones(()), atol=1e-5
    )


@pytest.mark.parametrize("places", ["universe", "confidence"])
def test_weighted_pixels_change_what_is_learned(source, away, quick, places):
    plain, weighted = (source.adapt("universe", places=how, **quick) for how in ("equal", places))
    for adapter in (plain, weighted):
        adapter.learn([away(0), away(1)])
        assert adapter(away(2)).isfinite().all()
    ours, theirs = (next(iter(adapter.network.parameters())) for adapter in (plain, weighted))
    assert not torch.equal(ours, theirs)
