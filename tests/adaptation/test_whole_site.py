"""A whole site in one call: methods that learn it first, and methods that take one batch after the other."""

import pytest
import torch

import ttdg


@pytest.fixture(scope="module")
def model():
    return ttdg.load("demo")


@pytest.fixture(scope="module")
def images(model):
    """Seven smooth images, which do not look like those of a source site."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(7, model.card.network.channels, 12, 12, generator=generator)
    return torch.nn.functional.interpolate(noise, size=64, mode="bilinear")


OPTIONS = {"self-training": {"folder_steps": 2, "draw": 2}, "universe": {"folder_steps": 2, "draw": 2}}


@pytest.mark.parametrize("method", ["self-training", "universe"])
def test_a_method_that_learns_a_site_learns_all_of_it_before_it_answers(model, images, method):
    adapter = ttdg.adapt(model, method, **OPTIONS[method])
    adapter.learn(images.split(3))
    expected = torch.cat([adapter.predict_frozen(part) for part in images.split(3)])
    seen = []
    answers = ttdg.predict_site(
        ttdg.adapt(model, method, **OPTIONS[method]),
        images,
        3,
        lambda done, total: seen.append((done, total)),
    )
    assert torch.equal(answers.logits, expected)
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize("method", ["norm", "tent", "judge"])
def test_any_other_method_answers_one_batch_after_the_other(model, images, method):
    adapter = ttdg.adapt(model, method)
    expected = torch.cat([adapter(part) for part in images.split(3)])
    adapter(images)  # what an adapter saw before does not count
    assert torch.equal(ttdg.predict_site(adapter, images, 3).logits, expected)


def test_the_expected_dice_of_all_images_comes_with_the_answers(model, images):
    adapter = ttdg.adapt(model, "judge")
    answers = ttdg.predict_site(adapter, images, 3)
    adapter.reset()
    one_by_one = [adapter(part) is not None and adapter.assessment() for part in images.split(3)]
    assert torch.equal(answers.dice, torch.cat([each.dice for each in one_by_one]))
    assert torch.equal(answers.half_width, torch.cat([each.half_width for each in one_by_one]))
    assert ttdg.predict_site(ttdg.adapt(model, "norm"), images).dice is None
