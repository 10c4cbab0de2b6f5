"""The quality of a judge is measured on hospitals that it was not fitted on."""

import torch
from scipy.stats import spearmanr

from ttdg.adaptation.judge.quality import judge_quality


def evidence(informative: bool, seed: int = 0):
    """Features and Dice of 200 images of ten hospitals, with three candidates and one region."""
    generator = torch.Generator().manual_seed(seed)
    dice = torch.rand(200, 1, 1, generator=generator).expand(-1, 3, -1).contiguous()
    signal = dice if informative else torch.rand(200, 3, 1, generator=generator)
    code = torch.eye(3).expand(200, -1, -1)
    return torch.cat([signal, code], -1), dice, torch.arange(200) // 20


def test_a_signal_that_is_the_dice_is_ranked_well_and_noise_is_not():
    good, poor = (judge_quality(*evidence(kind), fallback=0) for kind in (True, False))
    assert good["rank"] > 0.99
    assert abs(poor["rank"]) < 0.3
    assert good["hospitals"] == poor["hospitals"] == 10


def test_intervals_cover_about_as_much_as_they_promise_at_hospitals_of_the_same_kind():
    x, dice, hospital = evidence(True)
    noise = 0.2 * torch.randn(200, 3, 1, generator=torch.Generator().manual_seed(1))
    noisy = torch.cat([x[..., :1] + noise, x[..., 1:]], -1)
    assert 0.65 < judge_quality(noisy, dice, hospital, fallback=0)["coverage"] < 0.95


def test_a_hospital_that_contradicts_the_others_lowers_the_quality():
    """Its signal is reversed: a judge that had been fitted on it would know."""
    x, dice, hospital = evidence(True)
    reversed_there = torch.where((hospital == 9)[:, None, None], 1 - x[..., :1], x[..., :1])
    found = judge_quality(torch.cat([reversed_there, x[..., 1:]], -1), dice, hospital, fallback=0)
    assert found["rank"] < 0.95


def test_one_hospital_cannot_be_left_out_and_a_constant_has_no_rank():
    x, dice, hospital = evidence(True)
    assert judge_quality(x, dice, torch.zeros_like(hospital), fallback=0) is None
    assert judge_quality(x, torch.full_like(dice, 0.5), hospital, fallback=0)["rank"] is None


def test_the_rank_correlation_is_scipys():
    from ttdg.adaptation.judge.quality import _rank_correlation

    a, b = torch.rand(2, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul(10).round()
    assert abs(_rank_correlation(a, b) - spearmanr(a, b).statistic) < 1e-12
