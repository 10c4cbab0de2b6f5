"""Adapters that are built and called inside modes of torch, such as `inference_mode`, learn and answer as outside."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from ttdg.adaptation import METHODS, Resumable, SiteLearner, adapt, predict_site
from ttdg.adaptation.inference_mode import normal_mode

MODES = [(torch.inference_mode, "plain"), (torch.inference_mode, "flips"), (torch.no_grad, "plain")]
FEW = {
    "self-training": {"folder_steps": 2, "draw": 4},
    "universe": {"folder_steps": 2, "draw": 4},
    "upl-sfda": {"epochs": 1, "draw": 4},
}


@contextmanager
def double_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def batch(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, 16, 16, generator=generator, dtype=torch.float32) + 1


def answers(source, name, views="plain"):
    """The answers of a new adapter to two batches, before and after a reset."""
    adapter = source.quick(name, views=views)
    found = [adapter(batch(seed)) for seed in (0, 1)]
    adapter.reset()
    return [*found, adapter(batch(1))]


@pytest.mark.parametrize(("mode", "views"), MODES)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_answers_without_gradients_of_the_caller_as_outside(name, mode, views, ready):
    torch.manual_seed(0)
    expected = answers(ready(name), name, views)
    torch.manual_seed(0)
    with mode():
        found = answers(ready(name), name, views)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not any(answer.requires_grad for answer in found)


@pytest.mark.parametrize("mode", [lambda: torch.autocast("cpu", torch.bfloat16), double_by_default])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_its_precision_where_the_caller_has_chosen_another(name, mode, ready):
    torch.manual_seed(0)
    expected = ready(name).quick(name)(batch(0))
    source = ready(name)
    torch.manual_seed(0)
    with mode():
        found = source.quick(name)(batch(0))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", METHODS)
def test_images_that_were_made_in_inference_mode_can_be_learned_from_outside(name, ready):
    with torch.inference_mode():
        images = batch(0)
    assert images.is_inference()
    torch.manual_seed(0)
    expected = ready(name).quick(name)(batch(0))
    torch.manual_seed(0)
    assert torch.equal(ready(name).quick(name)(images), expected)


@pytest.mark.parametrize("name", FEW)
def test_a_site_is_learned_in_inference_mode_as_outside(name, ready):
    expected, adapter = (ready(name).quick(name, **FEW[name]) for _ in range(2))
    assert isinstance(adapter, SiteLearner)
    images = torch.cat([batch(0), batch(1)])
    known = predict_site(expected, images)
    with torch.inference_mode():
        found = predict_site(adapter, images)
    assert torch.equal(found.logits, known.logits)
    assert torch.equal(adapter(batch(2)), expected(batch(2)))


def test_a_state_that_was_loaded_in_inference_mode_goes_on_outside(ready):
    first, second = (ready("self-training").quick("self-training") for _ in range(2))
    first(batch(0))
    assert isinstance(first, Resumable)
    assert isinstance(second, Resumable)
    with torch.inference_mode():
        second.load_state({name: value.clone() for name, value in first.state().items()})
    assert torch.equal(second(batch(1)), first(batch(1)))


def test_a_network_that_was_made_in_inference_mode_is_adapted():
    with torch.inference_mode():
        network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)).eval()
        inside = adapt(network, "tent", activation="softmax")(batch(0))
    assert torch.equal(adapt(network, "tent", activation="softmax")(batch(0)), inside)


def test_the_mode_of_the_caller_is_left_and_restored():
    with torch.inference_mode():
        with normal_mode():
            assert not torch.is_inference_mode_enabled()
            assert torch.is_grad_enabled()
        assert torch.is_inference_mode_enabled()
    with torch.no_grad(), normal_mode():
        assert not torch.is_grad_enabled()
