import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.metrics.meandice import compute_dice

from ttdg.metrics import dice

seeds = st.integers(0, 10_000)


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_dice_is_monais(draw_maps, seed):
    probabilities, truth = draw_maps(seed)
    expected = compute_dice(probabilities >= 0.5, truth, include_background=True, ignore_empty=False)
    torch.testing.assert_close(dice(probabilities, truth), expected.double(), rtol=0, atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_dice_is_symmetric(draw_maps, seed):
    probabilities, truth = draw_maps(seed)
    masks = probabilities >= 0.5
    assert torch.equal(dice(masks.float(), truth), dice(truth.float(), masks))


def test_a_missed_structure_scores_zero_and_an_absent_one_that_is_left_out_scores_one():
    some = torch.zeros(1, 1, 5, 5)
    some[..., 2, 2] = 1
    none = torch.zeros_like(some)
    assert dice(none, some.bool()) == 0
    assert dice(some, none.bool()) == 0
    assert dice(none, none.bool()) == 1


def test_a_probability_of_one_half_is_foreground():
    half = torch.full((1, 1, 3, 3), 0.5)
    assert dice(half, torch.ones_like(half, dtype=torch.bool)) == 1
    assert dice(half - 2**-25, torch.ones_like(half, dtype=torch.bool)) == 0


def test_the_order_of_pixels_does_not_matter(draw_maps):
    probabilities, truth = (tensor.flatten(2) for tensor in draw_maps(1))
    order = torch.randperm(truth.shape[2])
    shuffled = dice(probabilities[:, :, None, order], truth[:, :, None, order])
    assert torch.equal(shuffled, dice(probabilities[:, :, None], truth[:, :, None]))
