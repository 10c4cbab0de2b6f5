import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.adaptation.source_free.structures import masked_loss, structure_logits, structures
from ttdg.errors import UserError


@given(labels=st.integers(2, 5), seed=st.integers(0, 99), scale=st.floats(0.1, 50))
@settings(max_examples=30, deadline=None)
def test_a_structure_of_a_softmax_head_is_the_sum_of_its_labels(labels, seed, scale):
    logits = scale * torch.randn(2, labels, 3, 3, generator=torch.Generator().manual_seed(seed))
    p = logits.double().softmax(1)
    expected = torch.stack([p[:, k:].sum(1) for k in range(1, labels)], 1)
    assert torch.allclose(structures(logits, "softmax").double(), expected, atol=1e-5)


def test_outer_structures_contain_inner_ones():
    p = structures(torch.randn(2, 4, 8, 8), "softmax")
    assert (p[:, :-1] >= p[:, 1:] - 1e-6).all()


def test_channels_of_a_sigmoid_head_are_the_structures():
    logits = torch.randn(2, 3, 4, 4)
    assert torch.equal(structure_logits(logits, "sigmoid"), logits)


def test_one_channel_needs_a_sigmoid_head():
    with pytest.raises(UserError, match='use head="sigmoid"'):
        structure_logits(torch.zeros(1, 1, 2, 2), "softmax")


def test_equal_weights_give_the_plain_mean_of_the_cross_entropy():
    logits, labels = torch.randn(2, 2, 5, 5), torch.randint(2, (2, 2, 5, 5)).float()
    expected = F.binary_cross_entropy_with_logits(logits, labels)
    for weight in (1.0, 0.3):
        assert torch.allclose(masked_loss(logits, labels, torch.full_like(logits, weight)), expected)


def test_a_focal_exponent_of_zero_is_no_focal_factor_and_two_is_the_published_one():
    logits, labels = torch.randn(2, 2, 5, 5), torch.randint(2, (2, 2, 5, 5)).float()
    keep = torch.randint(2, (2, 2, 5, 5)).float()
    bce, p = F.binary_cross_entropy_with_logits(logits, labels, reduction="none"), logits.sigmoid()
    published = bce * ((1 - p) ** 2 * labels + p**2 * (1 - labels))
    for focal, pixels in ((0.0, bce), (2.0, published)):
        expected = (keep * pixels).sum() / keep.sum()
        assert torch.allclose(masked_loss(logits, labels, keep, focal), expected)


def test_without_a_kept_pixel_the_loss_is_not_a_number():
    assert masked_loss(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)).isnan()
