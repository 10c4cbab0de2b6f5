"""universe-gradient: a frozen teacher, a frozen universe, and a step that lowers the objective."""

import copy
from typing import get_args

import pytest
import torch
from torch import Tensor

from ttdg.adaptation.universe.gradient import Variant
from ttdg.networks import feature_maps

VARIANTS = get_args(Variant)


def some_images(b: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(b, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) + 1


def loss_on(adapter, images: Tensor) -> float:
    adapter.memory.clear()
    with torch.no_grad():
        return float(
            adapter.objective(*feature_maps(adapter.network, images), adapter._teacher_predictions(images)[1])
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_learns_from_its_batch(variant, ready):
    adapter = ready("universe-gradient", labels=3).adapt("universe-gradient", variant=variant)
    before = copy.deepcopy(adapter.network.state_dict())
    assert adapter(some_images()).isfinite().all()
    assert any(not torch.equal(value, before[name]) for name, value in adapter.network.state_dict().items())


def test_one_step_lowers_the_objective(ready):
    adapter = ready("universe-gradient").adapt("universe-gradient", lr=1e-3)
    before = loss_on(adapter, some_images())
    adapter(some_images())
    assert loss_on(adapter, some_images()) < before


def test_the_teacher_and_the_universe_stay_as_they_were(ready):
    adapter = ready("universe-gradient").adapt("universe-gradient", lr=0.1)
    teacher, prior = (copy.deepcopy(x.state_dict()) for x in (adapter.teacher, adapter.prior))
    first = adapter._teacher_predictions(some_images())
    for seed in range(3):
        adapter(some_images(seed=seed))
    for frozen, before in ((adapter.teacher, teacher), (adapter.prior, prior)):
        assert all(torch.equal(value, before[name]) for name, value in frozen.state_dict().items())
        assert all(parameter.grad is None for parameter in frozen.parameters())
    assert all(
        torch.equal(a, b) for a, b in zip(first, adapter._teacher_predictions(some_images()), strict=True)
    )


def test_the_prediction_is_the_mean_of_the_source_and_the_adapted_networks(ready):
    source, images = ready("universe-gradient"), some_images()
    mean, adapted = (source.adapt("universe-gradient", average=a)(images).exp() for a in (True, False))
    with torch.no_grad():
        plain = copy.deepcopy(source.network).eval()(images).softmax(1)
    assert torch.allclose(mean, (plain + adapted) / 2, atol=1e-5)


def test_a_single_image_is_matched_together_with_remembered_graphs(ready):
    source = ready("universe-gradient")
    forgetting, remembering = (source.adapt("universe-gradient", remember=n) for n in (0, 2))
    for seed in range(4):
        for adapter in (forgetting, remembering):
            adapter(some_images(1, seed))
    assert len(forgetting.memory) == 0
    assert len(remembering.memory) == 2
    assert not torch.equal(forgetting(some_images(1, 9)), remembering(some_images(1, 9)))
    remembering.reset()
    assert len(remembering.memory) == 0


def test_a_batch_of_nan_does_not_put_nan_into_the_memory(ready):
    adapter = ready("universe-gradient").adapt("universe-gradient", remember=4)
    for images in (some_images(1), torch.full((1, 3, 32, 32), float("nan")), some_images(1)):
        answer = adapter(images)
    assert answer.isfinite().all()
    assert adapter.loss.isfinite()
    assert all(value.isfinite().all() for value in adapter.network.state_dict().values())


def test_the_controls_differ_from_the_method(ready):
    source, images = ready("universe-gradient", labels=3), some_images()
    answers = {}
    for variant in VARIANTS:
        adapter = source.adapt("universe-gradient", variant=variant, lr=1e-2)
        adapter(images)
        answers[variant] = adapter(images)
    assert all(not torch.equal(answers["full"], answers[v]) for v in VARIANTS if v != "full")
