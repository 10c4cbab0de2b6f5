"""MixStyle: statistics are mixed as drawn, in training mode only, and the same on any number of processes."""

import copy

import pytest
import torch

from ttdg.networks import NetworkSpec, Segmenter
from ttdg.training import Recipe
from ttdg.training.learner import Learner
from ttdg.training.mixstyle import LEVELS, draw_styles, mix_features


def features(b: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    scale = torch.arange(1.0, b + 1)[:, None, None, None]
    return scale * (torch.randn(b, 5, 8, 8, generator=generator) + 2)


def statistics(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x.mean((2, 3)), x.std((2, 3), correction=0)])


def test_weight_1_returns_the_features_exactly():
    x = features()
    assert torch.equal(mix_features(x, torch.ones(4), torch.tensor([1, 2, 3, 0])), x)
    assert torch.equal(mix_features(x.bfloat16(), torch.ones(4), torch.tensor([1, 2, 3, 0])), x.bfloat16())


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_means_and_deviations_are_mixed_with_those_of_the_partner(weight):
    x, partner = features(), torch.tensor([1, 2, 3, 0])
    mixed = mix_features(x, torch.full((4,), weight), partner)
    own = statistics(x)
    torch.testing.assert_close(
        statistics(mixed), weight * own + (1 - weight) * own[:, partner], rtol=1e-4, atol=1e-4
    )
    whitened = [(y - y.mean((2, 3), keepdim=True)) / y.std((2, 3), keepdim=True) for y in (x, mixed)]
    torch.testing.assert_close(*whitened, atol=1e-4, rtol=1e-4)


def test_statistics_are_constants_for_the_gradient():
    x = features().requires_grad_()
    weight, partner = torch.full((4,), 0.3), torch.tensor([1, 2, 3, 0])
    mix_features(x, weight, partner).sum().backward()
    std = statistics(x.detach())[1]
    expected = (0.3 * std + 0.7 * std[partner]) / std
    torch.testing.assert_close(x.grad, expected[:, :, None, None].expand_as(x), rtol=1e-3, atol=1e-3)


def test_draws_repeat_and_levels_are_mixed_with_the_given_probability():
    recipe = Recipe(batch=4, mixstyle=0.5)
    drawn = [draw_styles(recipe, step) for step in range(1, 401)]
    assert all(torch.equal(a, b) for a, b in zip(drawn[6], draw_styles(recipe, 7), strict=True))
    assert not torch.equal(drawn[0][0], drawn[1][0])
    weights, partners = (torch.stack(values) for values in zip(*drawn, strict=True))
    assert weights.shape == partners.shape == (400, 4, len(LEVELS))
    mixed = (weights != 1).any(1).float().mean(0)
    assert ((mixed - 0.5).abs() < 0.1).all()
    assert (partners.sort(1).values == torch.arange(4)[:, None]).all()


def test_the_learner_mixes_in_training_mode_only_and_has_no_further_parameters():
    torch.manual_seed(0)
    network = Segmenter(NetworkSpec(2, "light"))
    before = copy.deepcopy(network.state_dict())
    plain = Learner(copy.deepcopy(network), None, "ce", 0.0)
    mixing = Learner(network, None, "ce", 0.0, mixstyle=True)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training
    assert mixing.state_dict().keys() == plain.state_dict().keys()
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(0, 2, (4, 32, 32))
    weights, partners = torch.full((4, 2), 0.2), torch.tensor([[1, 2, 3, 0]] * 2).T
    assert not torch.allclose(plain(images, labels), mixing(images, labels, weights, partners))
    assert torch.allclose(plain(images, labels), mixing(images, labels, torch.ones(4, 2), partners))
    assert torch.allclose(plain(images, labels), mixing(images, labels))
    mixing.load_state_dict(plain.state_dict())
    plain.eval()
    mixing.eval()
    assert torch.equal(plain(images, labels), mixing(images, labels, weights, partners))


def test_only_the_drawn_level_is_mixed():
    torch.manual_seed(0)
    network = Segmenter(NetworkSpec(2, "light"))
    learner = Learner(network, None, "ce", 0.0, mixstyle=True)
    weights, partners = torch.tensor([[1.0, 0.2]]).expand(4, 2), torch.tensor([[1, 2, 3, 0]] * 2).T
    images = torch.randn(4, 3, 32, 32)
    plain = network.encode(images)
    with learner.styles.using(weights, partners):
        mixed = network.encode(images)
    for level in range(LEVELS[1]):
        torch.testing.assert_close(mixed[level], plain[level])
    assert not torch.allclose(mixed[LEVELS[1]], plain[LEVELS[1]])
