"""The regressor on data with a known linear relation."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from ttdg.adaptation.judge.regressor import RIDGE, Regressor, feature_matrix, fit_regressor, ridge
from ttdg.types import Part

CANDIDATES, FEATURES = 4, 5


def planted(n: int, noise: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Dice of one region, linear in the first two features, and the hospitals of four images each."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, CANDIDATES, FEATURES, generator=generator)
    dice = 0.6 + 0.1 * x[..., 0] - 0.05 * x[..., 1]
    return x, (dice + noise * torch.randn(dice.shape, generator=generator))[..., None], torch.arange(n) // 4


@pytest.fixture(scope="module")
def fitted() -> Regressor:
    return fit_regressor(*planted(400, 0.05, 0), members=3, coverage=0.8)


def test_a_planted_relation_is_learned(fitted):
    x, dice, _ = planted(300, 0.0, 1)
    predicted, truth = fitted.predict(x).dice.flatten(), dice.flatten().clamp(0, 1)
    assert (predicted - truth).abs().mean() < 0.06
    assert torch.corrcoef(torch.stack([predicted, truth]))[0, 1] > 0.94


def test_the_better_of_two_candidates_is_found(fitted):
    x, dice, _ = planted(300, 0.0, 2)
    predicted = fitted.predict(x).dice.argmax(1)
    lost = dice[..., 0].amax(1) - dice[..., 0].gather(1, predicted[:, None])[:, 0]
    assert lost.mean() < 0.015


def test_the_interval_covers_about_four_fifths_of_fresh_data(fitted):
    x, dice, _ = planted(500, 0.05, 3)
    predicted = fitted.predict(x)
    inside = (predicted.dice - dice[..., 0]).abs() <= predicted.half_width
    assert 0.7 < inside.float().mean() < 0.9


def test_the_deviation_between_sites_widens_intervals_and_leaves_the_rest(fitted):
    x = planted(20, 0.0, 3)[0]
    alone, together = fitted.predict(x), replace(fitted, between=0.1).predict(x)
    assert torch.allclose(together.half_width**2, alone.half_width**2 + (norm.ppf(0.9) * 0.1) ** 2, atol=1e-5)
    assert torch.equal(together.dice, alone.dice)
    assert torch.equal(together.members, alone.members)


def test_sites_whose_errors_share_an_offset_are_covered_with_the_deviation_between_sites(fitted):
    x, dice, _ = planted(4000, 0.05, 5)
    site = torch.randn(100, generator=torch.Generator().manual_seed(6)).repeat_interleave(40)
    moved = dice[..., 0] + 0.1 * site[:, None]
    shares = []
    for between in (0.0, 0.1):
        predicted = replace(fitted, between=between).predict(x)
        shares.append(((predicted.dice - moved).abs() <= predicted.half_width).float().mean())
    assert shares[0] < 0.65
    assert 0.72 < shares[1] < 0.88


@pytest.mark.parametrize(("anatomy", "between"), [("steady", 0.1), ("varied", 0.0), (None, 0.0)])
def test_a_saved_regressor_takes_the_deviation_of_its_anatomy(fitted, anatomy, between):
    settings = {} if anatomy is None else {"learning": {"anatomy": anatomy}}
    part = Part({f"all.{name}": value for name, value in fitted.tensors().items()}, settings)
    loaded = Regressor.from_part(part, "all.")
    assert loaded.between == loaded.to(torch.device("cpu")).between == between
    assert all(torch.equal(value, fitted.tensors()[name]) for name, value in loaded.tensors().items())


def test_predictions_do_not_depend_on_the_order_of_images_and_candidates(fitted):
    x = planted(6, 0.0, 4)[0]
    rows, columns = torch.randperm(6), torch.randperm(CANDIDATES)
    whole = fitted.predict(x)
    assert torch.allclose(fitted.predict(x[rows]).dice, whole.dice[rows], atol=1e-6)
    assert torch.allclose(fitted.predict(x[:, columns]).half_width, whole.half_width[:, columns], atol=1e-6)


def test_extreme_signals_are_clipped(fitted):
    x = torch.zeros(1, 1, FEATURES)
    far, further = (x.index_fill(2, torch.tensor([0]), value) for value in (50.0, 5000.0))
    assert torch.equal(fitted.predict(far).dice, fitted.predict(further).dice)
    assert 0 <= fitted.predict(further).dice <= 1


def test_a_fit_is_deterministic_and_does_not_use_the_global_generator():
    x, dice, hospital = planted(40, 0.05, 0)
    state = torch.get_rng_state()
    a, b = (fit_regressor(x, dice, hospital, members=2) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, b.tensors()[name]) for name, v in a.tensors().items())


def test_ridge_equals_least_squares_with_penalty_rows():
    generator = torch.Generator().manual_seed(0)
    z, y = (torch.randn(30, k, generator=generator, dtype=torch.double) for k in (4, 2))
    pull = math.sqrt(RIDGE * 30) * np.eye(4)
    rows, targets = np.vstack([z.numpy(), pull]), np.vstack([y.numpy(), np.zeros((4, 2))])
    expected = np.linalg.lstsq(rows, targets, rcond=None)[0]
    assert np.allclose(ridge(z, y, 30).numpy(), expected)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_regressor_can_be_fitted_to_very_few_images(n):
    predicted = fit_regressor(*planted(n, 0.05, 0)).predict(planted(3, 0.0, 1)[0])
    assert predicted.dice.isfinite().all()
    assert (predicted.half_width > 0).all()


def test_intervals_account_for_errors_that_images_of_one_hospital_share():
    """Every hospital has its own error, which its signals reveal for images of the same hospital only."""
    generator = torch.Generator().manual_seed(1)
    x, dice, hospital = planted(200, 0.02, 0)
    own = torch.randn(50, 40, generator=generator)[hospital]
    shared = 0.1 * torch.randn(50, generator=generator)[hospital]
    x = torch.cat([x, own[:, None].expand(-1, CANDIDATES, -1)], 2)
    dice = dice + shared[:, None, None]
    apart, together = (fit_regressor(x, dice, who).predict(x) for who in (hospital, torch.arange(200)))
    assert apart.half_width.mean() > 1.3 * together.half_width.mean()


def test_features_are_the_signals_and_a_one_hot_code_of_the_candidate():
    found = {"a": torch.tensor([[1.0], [3.0]]), "b": torch.tensor([[5.0], [float("nan")]])}
    x = feature_matrix(found, ["a", "b"])
    assert x.shape == (1, 2, 2 + 2)
    assert x[0].tolist() == [[1.0, 5.0, 1.0, 0.0], [3.0, 0.0, 0.0, 1.0]]
    assert feature_matrix(found, ["b"]).shape == (1, 2, 3)
