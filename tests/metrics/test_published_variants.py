"""How the published variants deviate from the definitions; their values are in test_golden.py."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.metrics import alignment_curve
from ttdg.metrics.published_variants import alignment_vptta


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_the_published_alignment_is_nearly_right_for_masks_that_are_not_empty(draw_maps, seed):
    probabilities, truth = draw_maps(seed)
    masks = probabilities >= 0.5
    masks[..., 0, 0] |= ~masks.flatten(2).any(-1)
    right = alignment_curve(masks.double(), truth)[..., 128]
    torch.testing.assert_close(alignment_vptta(masks, truth), right, rtol=0, atol=0.01)


def test_the_published_alignment_takes_an_empty_mask_for_a_full_one():
    none = torch.zeros(1, 1, 10, 10, dtype=torch.bool)
    assert alignment_vptta(none, none) == 0
    assert alignment_vptta(none, ~none) > 1
