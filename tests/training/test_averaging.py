"""The moving average of the weights."""

import copy

import torch

from ttdg.networks import NetworkSpec, Segmenter
from ttdg.training.averaging import WeightAverage
from ttdg.training.learner import Learner


def a_learner() -> Learner:
    torch.manual_seed(0)
    return Learner(Segmenter(NetworkSpec(2, "light")), None, "ce", 0.0)


def perturb(learner: Learner, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for value in learner.state_dict().values():
        if value.is_floating_point():
            value.add_(torch.randn(value.shape, generator=generator))
        else:
            value.add_(1)


def test_the_average_follows_the_formula_for_weights_and_buffers_and_copies_counts():
    learner = a_learner()
    average = WeightAverage(learner, 0.3)
    expected = copy.deepcopy(learner.state_dict())
    for n in range(1, 6):
        perturb(learner, n)
        average.advance()
        average.update()
        decay = min(0.3, (1 + n) / (10 + n))
        for name, value in learner.state_dict().items():
            floating = value.is_floating_point()
            expected[name] = decay * expected[name] + (1 - decay) * value if floating else value.clone()
    own = average.learner.state_dict()
    assert any(name.endswith("running_mean") for name in own)
    assert all(torch.allclose(own[name], value, atol=1e-5) for name, value in expected.items())
    assert not any(p.requires_grad for p in average.learner.parameters())
    assert not average.learner.training
    assert all(p.requires_grad for p in learner.parameters())


def test_a_restored_average_goes_on_as_the_first():
    learner = a_learner()
    first = WeightAverage(learner, 0.9)
    for n in range(1, 4):
        perturb(learner, n)
        first.advance()
        first.update()
    second = WeightAverage(learner, 0.9)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    perturb(learner, 4)
    for average in (first, second):
        average.advance()
        average.update()
    assert second.updates == 4
    for a, b in zip(first.learner.state_dict().values(), second.learner.state_dict().values(), strict=True):
        assert torch.equal(a, b)
