import numpy as np
import py_sod_metrics as sod
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ttdg.metrics import alignment_curve, max_alignment

seeds = st.integers(0, 10_000)


def by_definition(mask: np.ndarray, truth: np.ndarray) -> float:
    """E_φ of one binary map, directly from its definition."""
    F, G = mask.astype(float), truth.astype(float)
    a, b = F - F.mean(), G - G.mean()
    phi = (1 + 2 * a * b / (a**2 + b**2 + np.spacing(1))) ** 2 / 4
    phi = 1 - F if not truth.any() else F if truth.all() else phi
    return phi.sum() / (truth.size - 1)


@settings(max_examples=10, deadline=None)
@given(seeds, st.integers(0, 255))
def test_each_threshold_scores_the_binary_map_it_makes(draw_maps, seed, k):
    probabilities, truth = draw_maps(seed)
    curves = alignment_curve(probabilities, truth)
    for image, region in np.ndindex(*truth.shape[:2]):
        expected = by_definition(
            probabilities[image, region].numpy() >= k / 255, truth[image, region].numpy()
        )
        np.testing.assert_allclose(curves[image, region, k], expected, atol=1e-9)


def peer(probabilities: Tensor, truth: Tensor) -> sod.Emeasure:
    measure = sod.Emeasure()
    for p, g in zip(probabilities.flatten(0, 1).numpy(), truth.flatten(0, 1).numpy(), strict=True):
        measure.step(p, g, normalize=False)
    return measure


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_curves_and_their_maximum_are_those_of_pysodmetrics(draw_maps, seed):
    probabilities, truth = draw_maps(seed)
    curves, measure = alignment_curve(probabilities, truth), peer(probabilities, truth)
    theirs = np.flip(np.stack(measure.changeable_ems), 1)  # pysodmetrics orders thresholds downwards
    np.testing.assert_allclose(curves.flatten(0, 1), theirs, atol=1e-9)
    ours = max_alignment(curves.flatten(0, 1)[:, None])
    np.testing.assert_allclose(ours, measure.get_results()["em"]["curve"].max(), atol=1e-9)


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_a_mask_is_aligned_as_its_complement_with_the_complement(draw_maps, seed):
    probabilities, truth = draw_maps(seed)
    masks = probabilities >= 0.5
    curves, others = alignment_curve(masks.double(), truth), alignment_curve((~masks).double(), ~truth)
    torch.testing.assert_close(curves[..., 1:], others[..., 1:])  # at threshold 0 both masks are full


def test_the_order_of_pixels_does_not_matter(draw_maps):
    probabilities, truth = (tensor.flatten(2) for tensor in draw_maps(2))
    order = torch.randperm(truth.shape[2])
    shuffled = alignment_curve(probabilities[:, :, None, order], truth[:, :, None, order])
    assert torch.equal(shuffled, alignment_curve(probabilities[:, :, None], truth[:, :, None]))


def test_a_perfect_mask_scores_n_over_n_minus_1_at_every_threshold_above_0(draw_maps):
    _, truth = draw_maps(3)
    pixels = truth[0, 0].numel()
    curves = alignment_curve(truth.double(), truth)[..., 1:]
    torch.testing.assert_close(curves, torch.full_like(curves, pixels / (pixels - 1)))


def test_the_maximum_is_of_the_mean_curve_and_not_the_mean_of_maxima():
    curves = torch.zeros(2, 1, 256, dtype=torch.float64)
    curves[0, 0, 10], curves[1, 0, 200] = 1, 0.6
    assert float(max_alignment(curves)) == 0.5
    assert float(curves.amax(-1).mean()) == 0.8


def test_an_image_of_one_pixel_scores_one_or_zero():
    one, zero = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
    for p, g, expected in ((one, one, 1), (zero, zero, 1), (one, zero, 0), (zero, one, 0)):
        assert float(alignment_curve(p, g.bool())[0, 0, 128]) == expected
