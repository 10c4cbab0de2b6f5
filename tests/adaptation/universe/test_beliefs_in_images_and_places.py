"""Which images and pixels the learner believes, and the share of carried labels that is fitted."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from ttdg.adaptation.site_learning.image_memory import ImageMemory
from ttdg.adaptation.site_learning.soft_labels import place_weights
from ttdg.adaptation.universe.carried_share import CarriedShare
from ttdg.adaptation.universe.image_weights import mirror_consistency, structure_confidence
from ttdg.adaptation.universe.stored_labels import StoredLabels, notes
from ttdg.errors import UserError

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


# --- the share of carried labels


def stored(judged: torch.Tensor, carried: torch.Tensor, expected: list[float]) -> StoredLabels:
    memory = ImageMemory(None, 0)
    dice = torch.tensor(expected)
    memory.add(
        torch.rand(len(judged), 3, 16, 16), **notes(judged, dice, carried, torch.ones(len(judged)), dice)
    )
    return StoredLabels(memory)


@given(seed=SEEDS, share=st.sampled_from([0.0, 0.3, 0.8]))
@settings(max_examples=25, deadline=None)
def test_the_fitted_share_is_the_one_that_made_the_labels(seed, share):
    """The judge's labels of the unsure image are the truth, moved away from the carried labels by a known share."""
    carried, truth = some_labels(seed, 2, size=8), torch.randint(3, (2, 16, 16))
    true = F.interpolate(F.one_hot(truth, 3).movedim(-1, 1).float(), size=(8, 8), mode="area")
    judged = true if share == 0 else (true - share * carried) / (1 - share)
    found = CarriedShare()
    reader = stored(torch.full((2, 3, 16, 16), 1 / 3), carried, [0.1, 0.9])
    reader.labels = lambda name, rows, size: {"judged": judged, "carried": carried}[
        name
    ]  # not bounded to bytes
    found.add(reader, truth)
    assert found.best() == pytest.approx(share, abs=1e-3)


def test_carried_labels_that_are_wrong_get_no_share_and_right_ones_get_all():
    truth = torch.zeros(2, 16, 16, dtype=torch.long)
    truth[:, 4:12, 4:12] = 1
    right = F.one_hot(truth, 2).movedim(-1, 1).float()
    half = torch.full((2, 2, 16, 16), 0.5)
    for carried, share in ((right, 1.0), (1 - right, 0.0)):
        found = CarriedShare()
        found.add(stored(half, F.avg_pool2d(carried, 4), [0.1, 0.9]), truth)
        assert found.best() == pytest.approx(share, abs=0.01)
    assert CarriedShare().best() == 0.0


def test_the_fitted_share_is_used_and_an_older_judge_is_refused_in_words(source, quick):
    judge = source.parts["judge"]
    learning = dict(judge.settings["learning"])
    for share in (0.2, None):
        learning = {name: value for name, value in learning.items() if name != "carried"}
        learning |= {} if share is None else {"carried": share}
        part = replace(judge, settings={**judge.settings, "learning": learning})
        fitted = replace(source, parts={**source.parts, "judge": part})
        if share is None:
            with pytest.raises(UserError, match="without a share of carried labels"):
                fitted.adapt("universe", fitted_share=True, **quick)
        else:
            assert fitted.adapt("universe", fitted_share=True, **quick).carried == share
            assert fitted.adapt("universe", **quick).carried == 0.5


def test_a_fit_measures_the_share(source):
    assert 0.0 <= source.parts["judge"].settings["learning"]["carried"] <= 1.0
