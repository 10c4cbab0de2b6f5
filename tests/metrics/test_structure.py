import numpy as np
import py_sod_metrics as sod
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ttdg.metrics import structure

seeds = st.integers(0, 10_000)


def peer(p: np.ndarray, g: np.ndarray) -> float:
    """S_α from pysodmetrics, with a sum over quadrants that skips empty ones, where pysodmetrics gives NaN."""
    measure = sod.Smeasure()
    if g.all() or not g.any():
        return measure.cal_sm(p, g)
    y, x = (int(c) + 1 for c in np.argwhere(g).mean(axis=0).round())
    blocks = [
        (slice(*rows), slice(*columns)) for rows in ((0, y), (y, None)) for columns in ((0, x), (x, None))
    ]
    region = (
        sum(measure.ssim(p[block], g[block]) * g[block].size for block in blocks if g[block].size) / g.size
    )
    return max(0, (measure.object(p, g) + region) / 2)


def peers(probabilities: Tensor, truth: Tensor) -> Tensor:
    maps, masks = probabilities.double().flatten(0, 1).numpy(), truth.flatten(0, 1).numpy()
    scores = [peer(p, g) for p, g in zip(maps, masks, strict=True)]
    return torch.tensor(scores, dtype=torch.float64).view(truth.shape[:2])


def blob(size: int = 256) -> Tensor:
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    return ((y - 100) ** 2 + (x - 131) ** 2 < 3000)[None, None]


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_structure_is_that_of_pysodmetrics(draw_maps, seed):
    probabilities, truth = draw_maps(seed)
    torch.testing.assert_close(
        structure(probabilities, truth), peers(probabilities, truth), rtol=0, atol=2e-6
    )


def test_the_sum_over_quadrants_above_is_the_peers_own(disc_pair):
    _, truth, soft = disc_pair
    p, g = soft[0, 0].numpy(), truth[0, 0].numpy()
    assert peer(p, g) == pytest.approx(sod.Smeasure().cal_sm(p, g), abs=1e-12)


@pytest.mark.parametrize("level", [0.0, 0.3, 0.9999, 1.0])
@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-4, 1e-2])
def test_nearly_constant_maps_keep_their_precision(level, noise):
    """Where the variance is tiny relative to the mean, plain float32 sums would be off by 1e-4."""
    truth = blob()
    wave = torch.rand(truth.shape, generator=torch.Generator().manual_seed(0))
    maps = (level + noise * (wave - 0.5)).clamp(0, 1)
    torch.testing.assert_close(structure(maps, truth), peers(maps, truth), rtol=0, atol=1e-6)


def corners() -> Tensor:
    """A truth in two opposite corners: the other two quadrants contain background only."""
    truth = torch.zeros(1, 1, 64, 64, dtype=torch.bool)
    truth[..., :10, :10] = truth[..., -10:, -10:] = True
    return truth


@pytest.mark.parametrize("background", [0.0, 0.25])
def test_a_constant_map_is_like_the_truth_in_a_quadrant_without_any(background):
    truth = corners()
    maps = torch.where(truth, 0.75, background)
    torch.testing.assert_close(structure(maps, truth), peers(maps, truth), rtol=0, atol=1e-6)


def test_the_faintest_unevenness_in_a_quadrant_without_truth_costs_its_whole_share():
    truth = corners()
    maps = truth.float()
    maps[..., 5, 60], maps[..., 60, 5] = 1e-12, 1e-12
    score = structure(maps, truth)
    torch.testing.assert_close(score, peers(maps, truth), rtol=0, atol=1e-6)
    assert 0.2 < float(structure(truth.float(), truth) - score) < 0.3


@pytest.mark.parametrize("line", [(slice(None), -1), (-1, slice(None)), (-1, -1), (0, 0)])
def test_a_centroid_on_the_border_leaves_a_quadrant_empty_and_does_no_harm(line):
    truth = torch.zeros(1, 1, 9, 8, dtype=torch.bool)
    truth[0, 0][line] = True
    maps = torch.rand(truth.shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(structure(maps, truth), peers(maps, truth), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("h", "w"), [(1, 2), (1, 50), (50, 1), (2, 2), (1, 1)])
def test_images_of_one_row_or_column_are_scored(h, w):
    generator = torch.Generator().manual_seed(0)
    maps, truth = (
        torch.rand(5, 2, h, w, generator=generator),
        torch.rand(5, 2, h, w, generator=generator) > 0.5,
    )
    torch.testing.assert_close(structure(maps, truth), peers(maps, truth), rtol=0, atol=1e-6)


def test_an_empty_truth_scores_what_the_map_leaves_out_and_a_full_one_what_it_covers():
    maps = torch.full((1, 1, 5, 5), 0.2)
    none = torch.zeros(maps.shape, dtype=torch.bool)
    assert float(structure(maps, none)) == pytest.approx(0.8)
    assert float(structure(maps, ~none)) == pytest.approx(0.2)


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_transposed_images_score_the_same(draw_maps, seed):
    """Flipped images may score differently, because the centroid's row and column belong to the upper left."""
    probabilities, truth = draw_maps(seed)
    transposed = structure(probabilities.mT, truth.mT)
    torch.testing.assert_close(transposed, structure(probabilities, truth), rtol=0, atol=2e-6)


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_a_perfect_map_scores_one_and_no_map_scores_more(draw_maps, seed):
    probabilities, truth = draw_maps(seed)
    torch.testing.assert_close(
        structure(truth.float(), truth), torch.ones(truth.shape[:2], dtype=torch.float64)
    )
    scores = structure(probabilities, truth)
    assert 0 <= float(scores.min()) <= float(scores.max()) <= 1 + 1e-6


def test_autocast_changes_nothing(disc_pair):
    _, truth, soft = disc_pair
    with torch.autocast("cpu", torch.bfloat16):
        inside = structure(soft.float(), truth)
    assert torch.equal(inside, structure(soft.float(), truth))


def test_the_users_float32_matmul_precision_does_not_change_the_score(disc_pair):
    _, truth, soft = disc_pair
    usual = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        fast = structure(soft.float(), truth)
    finally:
        torch.set_float32_matmul_precision(usual)
    torch.testing.assert_close(fast, structure(soft.float(), truth), rtol=0, atol=1e-6)


def test_the_maps_are_left_as_they_were(disc_pair):
    _, truth, soft = disc_pair
    for dtype in (torch.float32, torch.float64):
        maps = soft.to(dtype, copy=True)
        structure(maps, truth)
        assert torch.equal(maps, soft.to(dtype))


def test_not_a_number_stays_visible(disc_pair):
    _, truth, soft = disc_pair
    broken = soft.clone()
    broken[..., 3, 3] = torch.nan
    assert structure(broken, truth).isnan()
