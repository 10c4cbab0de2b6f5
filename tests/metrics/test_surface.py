import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.metrics import compute_average_surface_distance, compute_hausdorff_distance
from scipy.ndimage import binary_erosion, distance_transform_edt
from torch import Tensor

from ttdg.metrics import assd, hd95, hd95_pooled, surface_scores
from ttdg.metrics.surface import surface

seeds = st.integers(0, 10_000)


@pytest.fixture(scope="session")
def draw_masks(draw_maps):
    def draw(seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Predictions and truths, none of them empty, and the pixel spacings."""
        probabilities, truth = draw_maps(seed)
        prediction = probabilities >= 0.5
        prediction[..., 0, 0] |= ~prediction.flatten(2).any(-1)
        truth[..., -1, -1] |= ~truth.flatten(2).any(-1)
        spacing = 0.2 + 3 * torch.rand(len(truth), 2, generator=torch.Generator().manual_seed(seed))
        return prediction, truth, spacing.double()

    return draw


@settings(max_examples=12, deadline=None)
@given(seeds, st.booleans())
def test_hd95_and_assd_are_monais(draw_masks, seed, physical):
    prediction, truth, spacing = draw_masks(seed)
    options = {"include_background": True, "spacing": spacing.tolist() if physical else None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MONAI warns about one of its own parameters
        theirs = (
            compute_hausdorff_distance(prediction, truth, percentile=95, **options),
            compute_average_surface_distance(prediction, truth, symmetric=True, **options),
        )
    ours = surface_scores(prediction, truth, spacing if physical else None)
    torch.testing.assert_close(ours.hd95, theirs[0].double(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.assd, theirs[1].double(), rtol=1e-4, atol=1e-4)


@settings(max_examples=12, deadline=None)
@given(seeds)
def test_pooled_hd95_is_the_percentile_of_all_distances_together(draw_masks, seed):
    prediction, truth, spacing = draw_masks(seed)
    found = hd95_pooled(prediction, truth, spacing)
    for image, region in np.ndindex(*found.shape):
        masks = prediction[image, region].numpy(), truth[image, region].numpy()
        P, G = (mask ^ binary_erosion(mask) for mask in masks)
        to_G, to_P = (distance_transform_edt(~edge, sampling=spacing[image].tolist()) for edge in (G, P))
        both = np.concatenate((to_G[P], to_P[G]))
        np.testing.assert_allclose(found[image, region], np.percentile(both, 95), atol=1e-9)


@settings(max_examples=12, deadline=None)
@given(seeds)
def test_surfaces_are_what_scipys_erosion_takes_away(draw_masks, seed):
    masks = draw_masks(seed)[0].flatten(0, 1)
    expected = np.stack([mask ^ binary_erosion(mask) for mask in masks.numpy()])
    assert np.array_equal(surface(masks), expected)


@settings(max_examples=12, deadline=None)
@given(seeds, st.floats(0.01, 100))
def test_scaled_pixels_scale_every_distance(draw_masks, seed, factor):
    prediction, truth, spacing = draw_masks(seed)
    for measure in (hd95, hd95_pooled, assd):
        larger = measure(prediction, truth, factor * spacing)
        torch.testing.assert_close(larger, factor * measure(prediction, truth, spacing))


@settings(max_examples=12, deadline=None)
@given(seeds)
def test_swapping_flipping_and_transposing_masks_changes_no_distance(draw_masks, seed):
    prediction, truth, spacing = draw_masks(seed)
    for measure in (hd95, hd95_pooled, assd):
        score = measure(prediction, truth, spacing)
        torch.testing.assert_close(measure(truth, prediction, spacing), score)
        torch.testing.assert_close(measure(prediction.flip(2), truth.flip(2), spacing), score)
        torch.testing.assert_close(measure(prediction.flip(3), truth.flip(3), spacing), score)
        torch.testing.assert_close(measure(prediction.mT, truth.mT, spacing.flip(1)), score)


def test_a_mask_is_at_no_distance_from_itself_and_a_shifted_pixel_at_its_shift():
    mask = torch.zeros(1, 1, 9, 9, dtype=torch.bool)
    mask[..., 2, 3] = True
    moved = mask.roll((3, 4), (2, 3))
    spacing = torch.tensor([[2.0, 0.5]])
    for measure in (hd95, hd95_pooled, assd):
        assert float(measure(mask, mask)) == 0
        assert float(measure(mask, moved)) == 5
        assert float(measure(mask, moved, spacing)) == pytest.approx(np.hypot(6, 2))


def test_an_empty_mask_is_at_the_diagonal_from_any_other_and_at_0_from_an_empty_one():
    some = torch.zeros(1, 1, 6, 8, dtype=torch.bool)
    some[..., 2, 2] = True
    none = torch.zeros_like(some)
    prediction, truth = torch.cat((none, some, none, some)), torch.cat((some, none, none, some))
    spacing = torch.tensor([[0.5, 0.5]]).expand(4, 2)
    scores = surface_scores(prediction, truth, spacing)
    assert scores.missed.flatten().tolist() == [True, True, False, False]
    for values in (scores.hd95, scores.hd95_pooled, scores.assd):
        assert values.flatten().tolist() == [5, 5, 0, 0]


def test_a_missed_structure_is_farther_than_any_found_one():
    corner, opposite = torch.zeros(2, 1, 1, 7, 5, dtype=torch.bool)
    corner[..., 0, 0] = opposite[..., -1, -1] = True
    assert hd95(corner, opposite) < hd95(corner, torch.zeros_like(corner))


def test_images_of_one_row_and_full_masks_are_scored():
    row = torch.tensor([[[[1, 1, 0, 0, 0, 1]]]], dtype=torch.bool)
    assert float(hd95(torch.ones_like(row), torch.ones_like(row))) == 0
    assert float(assd(row, torch.ones_like(row))) == pytest.approx((1 + 2 + 1) / 9)


def test_each_image_is_scored_as_if_alone(draw_masks):
    prediction, truth, spacing = draw_masks(11)
    together = surface_scores(prediction, truth, spacing)
    for image in range(len(truth)):
        one = slice(image, image + 1)
        alone = surface_scores(prediction[one], truth[one], spacing[one])
        for name in ("hd95", "hd95_pooled", "assd"):
            torch.testing.assert_close(getattr(together, name)[one], getattr(alone, name))
