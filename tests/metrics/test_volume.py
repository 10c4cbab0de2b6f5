"""Scores of volumes against MONAI, SciPy and NumPy."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.metrics import compute_average_surface_distance, compute_hausdorff_distance
from scipy.ndimage import binary_erosion, distance_transform_edt

from ttdg.metrics import dice, volume_dice, volume_surface_scores
from ttdg.metrics.surface import surface

seeds = st.integers(0, 10_000)
spacings = st.tuples(*[st.floats(0.2, 5)] * 3)


def blobs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks of two regions, none empty: rough balls in a volume of random shape, some slices without any."""
    rng = np.random.default_rng(seed)
    shape = rng.integers((3, 6, 6), (9, 16, 16))
    grid = np.stack(np.meshgrid(*(np.arange(side) / side for side in shape), indexing="ij"), -1)
    masks = []
    for _ in range(4):
        distance = np.linalg.norm(grid - rng.uniform(0.2, 0.8, 3), axis=-1)
        mask = distance + 0.1 * rng.standard_normal(shape) < rng.uniform(0.15, 0.4)
        mask[tuple(rng.integers(0, shape))] = True
        masks.append(mask)
    stacked = torch.from_numpy(np.stack(masks))
    return stacked[:2], stacked[2:]


@settings(max_examples=12, deadline=None)
@given(seeds, spacings)
def test_distances_of_volumes_are_monais(seed, spacing):
    prediction, truth = blobs(seed)
    options = {"include_background": True, "spacing": list(spacing)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hd95 = compute_hausdorff_distance(prediction[None], truth[None], percentile=95, **options)
        assd = compute_average_surface_distance(prediction[None], truth[None], symmetric=True, **options)
    ours = volume_surface_scores(prediction, truth, spacing)
    torch.testing.assert_close(ours.hd95, hd95.double(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.assd, assd.double(), rtol=1e-4, atol=1e-4)


@settings(max_examples=12, deadline=None)
@given(seeds, spacings)
def test_pooled_distances_of_volumes_are_those_of_scipys_transform(seed, spacing):
    prediction, truth = blobs(seed)
    found = volume_surface_scores(prediction, truth, spacing).hd95_pooled[0]
    for region in range(2):
        P, G = (mask ^ binary_erosion(mask) for mask in (prediction[region].numpy(), truth[region].numpy()))
        to_G, to_P = (distance_transform_edt(~edge, sampling=spacing) for edge in (G, P))
        expected = np.percentile(np.concatenate((to_G[P], to_P[G])), 95)
        np.testing.assert_allclose(found[region], expected, atol=1e-9)
        assert np.array_equal(surface(prediction)[region], P)


@settings(max_examples=12, deadline=None)
@given(seeds)
def test_dice_of_a_volume_pools_its_slices(seed):
    prediction, truth = blobs(seed)
    both = (prediction & truth).numpy().sum((1, 2, 3))
    expected = 2 * both / (prediction.numpy().sum((1, 2, 3)) + truth.numpy().sum((1, 2, 3)))
    np.testing.assert_allclose(volume_dice(prediction, truth), expected)


@settings(max_examples=12, deadline=None)
@given(seeds)
def test_dice_of_a_volume_of_one_slice_is_that_of_the_slice(seed):
    prediction, truth = (mask[:, mask.shape[1] // 2] for mask in blobs(seed))
    expected = dice(prediction[None].double(), truth[None])[0]
    torch.testing.assert_close(volume_dice(prediction[:, None], truth[:, None]), expected)


def test_a_missed_structure_is_at_the_diagonal_of_the_volume_and_an_absent_one_at_0():
    none = torch.zeros(2, 4, 6, 8, dtype=torch.bool)
    some = none.clone()
    some[0, 1, 2:4, 3] = True
    assert volume_dice(none, some).tolist() == [0, 1]
    scores = volume_surface_scores(some, none, (3.0, 0.5, 0.5))
    diagonal = math.hypot(12, 3, 4)
    assert scores.missed.tolist() == [[True, False]]
    for values in (scores.hd95, scores.hd95_pooled, scores.assd):
        assert values.tolist() == [[pytest.approx(diagonal), 0]]


def test_a_false_slice_beyond_the_structure_costs_dice_and_distance():
    truth = torch.zeros(1, 5, 8, 8, dtype=torch.bool)
    truth[0, 1:3, 2:6, 2:6] = True
    beyond = truth.clone()
    beyond[0, 4, 2:6, 2:6] = True
    assert volume_dice(beyond, truth).item() == pytest.approx(2 * 32 / (48 + 32))
    assert volume_surface_scores(beyond, truth, (3.0, 1.0, 1.0)).hd95.item() == pytest.approx(6)
