"""The judge's arithmetic on planted relations."""

import pytest
import torch
from torch import Tensor

from ttdg.adapt.regressor import Regressor, features, fit_regressor

CANDIDATES, FEATURES = 4, 5


def planted(n: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """Dice of one region, linear in the first two features."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, CANDIDATES, FEATURES, generator=generator)
    dice = 0.6 + 0.1 * x[..., 0] - 0.05 * x[..., 1]
    return x, (dice + noise * torch.randn(dice.shape, generator=generator))[..., None]


@pytest.fixture(scope="module")
def fitted() -> Regressor:
    return fit_regressor(*planted(400, 0.05, 0), members=3)


def test_a_planted_relation_is_learned(fitted):
    x, dice = planted(300, 0.0, 1)
    predicted, truth = fitted.predict(x).dice.flatten(), dice.flatten().clamp(0, 1)
    assert (predicted - truth).abs().mean() < 0.06
    assert torch.corrcoef(torch.stack([predicted, truth]))[0, 1] > 0.94


def test_the_better_of_two_candidates_is_found(fitted):
    x, dice = planted(300, 0.0, 2)
    predicted = fitted.predict(x).dice.argmax(1)
    lost = dice[..., 0].amax(1) - dice[..., 0].gather(1, predicted[:, None])[:, 0]
    assert lost.mean() < 0.015


def test_the_interval_covers_about_four_fifths_of_fresh_data(fitted):
    x, dice = planted(500, 0.05, 3)
    predicted = fitted.predict(x)
    inside = (predicted.dice - dice[..., 0]).abs() <= predicted.half_width
    assert 0.7 < inside.float().mean() < 0.9


def test_images_and_candidates_are_judged_one_by_one(fitted):
    x = planted(6, 0.0, 4)[0]
    rows, columns = torch.randperm(6), torch.randperm(CANDIDATES)
    whole = fitted.predict(x)
    assert torch.allclose(fitted.predict(x[rows]).dice, whole.dice[rows], atol=1e-6)
    assert torch.allclose(fitted.predict(x[:, columns]).half_width, whole.half_width[:, columns], atol=1e-6)


def test_a_signal_from_far_away_says_no_more_than_one_from_the_edge(fitted):
    x = torch.zeros(1, 1, FEATURES)
    far, further = (x.index_fill(2, torch.tensor([0]), value) for value in (50.0, 5000.0))
    assert torch.equal(fitted.predict(far).dice, fitted.predict(further).dice)
    assert 0 <= fitted.predict(further).dice <= 1


def test_fitting_again_gives_the_same_and_draws_nothing_from_the_global_generator():
    x, dice = planted(40, 0.05, 0)
    state = torch.get_rng_state()
    a, b = (fit_regressor(x, dice, members=2, steps=5) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, b.state_dict()[name]) for name, v in a.state_dict().items())
    assert not any(parameter.requires_grad for parameter in a.parameters())


def test_features_are_signals_differences_and_the_candidates_name():
    found = {"a": torch.tensor([[1.0], [3.0]]), "b": torch.tensor([[5.0], [float("nan")]])}
    x = features(found, ["a", "b"])
    assert x.shape == (1, 2, 2 + 2 + 2)
    assert x[0].tolist() == [[1.0, 5.0, 0.0, 0.0, 1.0, 0.0], [3.0, 0.0, 2.0, -5.0, 0.0, 1.0]]
    assert features(found, ["b"]).shape == (1, 2, 4)
