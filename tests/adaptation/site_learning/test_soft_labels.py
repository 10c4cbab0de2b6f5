import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.adaptation.losses import probabilities
from ttdg.adaptation.site_learning.soft_labels import guided, mirror_mean, sharpen, soft_label_loss
from ttdg.adaptation.site_learning.strong_views import draw_views, move_labels, strong_view

HEADS = st.sampled_from(["softmax", "sigmoid"])
SHAPES = st.tuples(st.integers(1, 4), st.integers(2, 4), st.integers(1, 9), st.integers(1, 9))


def prediction_and_labels(shape, head, seed):
    generator = torch.Generator().manual_seed(seed)
    logits, others = (3 * torch.randn(shape, generator=generator) for _ in range(2))
    return logits, probabilities(others, head)


def test_sharpening_keeps_the_order_and_sums_to_one():
    p = torch.rand(2, 4, 5, 5).softmax(1)
    q = sharpen(p, 2.0, "softmax")
    assert torch.allclose(q.sum(1), torch.ones(2, 5, 5))
    assert torch.equal(q.argsort(1), p.argsort(1))
    assert torch.allclose(sharpen(p, 1.0, "softmax"), p)
    assert torch.allclose(sharpen(torch.tensor([[[[0.8]]]]), 2.0, "sigmoid"), torch.tensor(0.64 / 0.68))


def blocks(p):
    """Every value repeated over 4 × 4 pixels, so that the sub-grid on which areas are measured sees all values."""
    return p.repeat_interleave(4, 2).repeat_interleave(4, 3)


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(2, 4), st.integers(5, 9), st.integers(5, 9)),
    head=HEADS,
    power=st.floats(1.0, 2.0),
    seed=st.integers(0, 999),
)
@settings(max_examples=50, deadline=None)
def test_sharpening_that_keeps_areas_keeps_the_mean_of_every_structure(shape, head, power, seed):
    """The structures of a sigmoid head are those that cover at most half of the image: others converge slowly."""
    generator = torch.Generator().manual_seed(seed)
    bias = torch.randn(1, shape[1], 1, 1, generator=generator) - (2 if head == "sigmoid" else 0)
    p = blocks(probabilities(torch.randn(shape, generator=generator) + bias, head))
    area = p.mean((2, 3))
    small = area <= (0.5 if head == "sigmoid" else 1.0)
    drift = [(sharpen(p, power, head, keep).mean((2, 3)) - area).abs()[small] for keep in (True, False)]
    assert (drift[0] < 0.01).all()
    assert (drift[0] <= drift[1] + 1e-3).all()


@given(shape=SHAPES, head=HEADS, seed=st.integers(0, 999))
@settings(max_examples=30, deadline=None)
def test_at_power_one_keeping_areas_changes_nothing(shape, head, seed):
    p = probabilities(2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)), head)
    for q in (sharpen(p, 1.0, head, keep_areas=True), sharpen(p, 1.0, head)):
        assert torch.allclose(q, p, atol=1e-5)


@given(
    shape=SHAPES,
    head=HEADS,
    power=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    scale=st.sampled_from([0.0, 1.0, 10.0, 200.0]),
    seed=st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_sharpening_that_keeps_areas_gives_distributions_even_of_certain_predictions(
    shape, head, power, scale, seed
):
    """A scale of 200 makes probabilities of exactly 0 and 1; a channel that is 0 everywhere has no area to keep."""
    logits = scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    logits[:, 0] -= 3 * scale
    q = sharpen(probabilities(logits, head), power, head, keep_areas=True)
    assert q.isfinite().all()
    assert q.min() >= 0
    assert q.max() <= 1 + 1e-6
    if head == "softmax":
        assert torch.allclose(q.sum(1), torch.ones(()), atol=1e-4)


def test_a_faint_structure_survives_only_sharpening_that_keeps_its_area():
    faint = torch.linspace(0.0, 0.4, 16).expand(16, 16)
    p = blocks(torch.stack([1 - faint, faint])[None])
    assert sharpen(p, 3.0, "softmax")[0, 1].mean() < 0.5 * faint.mean()
    assert sharpen(p, 3.0, "softmax", keep_areas=True)[0, 1].mean() == pytest.approx(0.2, rel=0.02)


def test_the_mean_over_mirror_images_undoes_the_mirror():
    logits = torch.randn(3, 2, 4, 6)
    assert torch.allclose(mirror_mean(torch.cat([logits, logits.flip(3)]), "softmax"), logits.softmax(1))


def test_the_loss_of_certain_labels_is_cross_entropy_plus_one_minus_dice():
    torch.manual_seed(1)
    logits, hard = torch.randn(2, 3, 8, 8), torch.randint(0, 3, (2, 8, 8))
    labels = F.one_hot(hard, 3).movedim(-1, 1).float()
    p = logits.softmax(1)[:, 1:]
    both, sizes = (p * labels[:, 1:]).sum((2, 3)), (p + labels[:, 1:]).sum((2, 3))
    expected = F.cross_entropy(logits, hard) + 1 - ((2 * both + 1) / (sizes + 1)).mean()
    assert torch.allclose(soft_label_loss(logits, labels, "softmax"), expected)
    without = soft_label_loss(logits, labels, "softmax", dice=False)
    assert torch.allclose(without, F.cross_entropy(logits, hard))


@given(shape=SHAPES, head=HEADS, dice=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_weights_of_one_give_exactly_the_unweighted_loss(shape, head, dice, seed):
    logits, labels = prediction_and_labels(shape, head, seed)
    ones = torch.ones(shape[0], 1, *shape[2:])
    assert torch.equal(
        soft_label_loss(logits, labels, head, ones, dice), soft_label_loss(logits, labels, head, dice=dice)
    )


@given(shape=SHAPES, head=HEADS, dice=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_pixels_of_weight_zero_do_not_count(shape, head, dice, seed):
    logits, labels = prediction_and_labels(shape, head, seed)
    weights = torch.rand(shape[0], 1, *shape[2:], generator=torch.Generator().manual_seed(seed))
    weights[..., 0] = 0
    weights[..., -1, -1] += 1 if shape[3] > 1 else 0
    other_logits, other_labels = logits.clone(), labels.clone()
    other_logits[..., 0], other_labels[..., 0] = 5.0, 0.5
    first, second = (
        soft_label_loss(x, y, head, weights, dice)
        for x, y in ((logits, labels), (other_logits, other_labels))
    )
    assert torch.allclose(first, second, equal_nan=True)
    assert bool(first.isnan()) is (shape[3] == 1)  # no pixel is left


@given(shape=SHAPES, head=HEADS, seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_weighted_loss_equals_its_definition(shape, head, seed):
    logits, labels = prediction_and_labels(shape, head, seed)
    weights = torch.rand(shape[0], 1, *shape[2:], generator=torch.Generator().manual_seed(seed)) + 0.01
    p, y = (x.double().numpy() for x in (probabilities(logits.double(), head), labels))
    w = weights.double().numpy()
    if head == "softmax":
        terms = -(y * np.log(p)).sum(1)
        p, y = p[:, 1:], y[:, 1:]
    else:
        terms = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(1)
    expected = np.average(terms, weights=w[:, 0])
    dice = (2 * (w * p * y).sum((2, 3)) + 1) / ((w * p).sum((2, 3)) + (w * y).sum((2, 3)) + 1)
    expected += np.average(1 - dice.mean(1), weights=w.mean((1, 2, 3)))
    assert soft_label_loss(logits, labels, head, weights).item() == pytest.approx(expected, rel=1e-4)


def test_an_image_of_weight_two_counts_as_often_as_two_images():
    logits, labels = prediction_and_labels((2, 3, 6, 6), "softmax", 0)
    weights = torch.ones(2, 1, 6, 6)
    weights[1] = 2
    repeated = soft_label_loss(logits[[0, 1, 1]], labels[[0, 1, 1]], "softmax", dice=False)
    assert torch.allclose(soft_label_loss(logits, labels, "softmax", weights, dice=False), repeated)


def test_a_guide_replaces_the_share_of_the_labels_that_it_asks_for_and_moves_with_them():
    generator = torch.Generator().manual_seed(0)
    labels, others = (torch.rand(3, 2, 16, 16, generator=generator) for _ in range(2))
    weights = torch.rand(3, 1, 16, 16, generator=generator)
    _, grid = strong_view(torch.rand(3, 3, 16, 16), draw_views(3, generator))
    share = torch.tensor([0.0, 0.25, 1.0]).view(3, 1, 1, 1)
    moved, moved_weights = guided(labels, grid, others, share, weights)
    mixed = torch.stack([labels[0], 0.75 * labels[1] + 0.25 * others[1], others[2]])
    assert torch.allclose(moved, move_labels(mixed, grid), atol=1e-6)
    assert torch.allclose(moved_weights, move_labels(weights, grid), atol=1e-6)


def test_without_a_guide_labels_move_and_there_are_no_weights():
    labels = torch.rand(2, 3, 8, 8)
    _, grid = strong_view(torch.rand(2, 3, 8, 8), draw_views(2, torch.Generator().manual_seed(0)))
    moved, weights = guided(labels, grid)
    assert torch.equal(moved, move_labels(labels, grid))
    assert weights is None


def test_labels_move_with_their_images():
    images = torch.zeros(3, 3, 32, 32)
    images[:, :, 8:16, 6:20] = 1
    generator = torch.Generator().manual_seed(0)
    parameters = draw_views(3, generator, "standard")
    moved_images, grid = strong_view(images, parameters)
    labels = move_labels(images[:, :1].clone(), grid)
    inside = labels > 0.99
    outside = labels < 0.01
    brightness = moved_images.mean(1, keepdim=True)
    for i in range(3):
        assert brightness[i][inside[i]].min() > brightness[i][outside[i]].max()


def test_still_views_change_light_and_colours_and_leave_every_pixel_in_its_place():
    images, labels = torch.rand(3, 3, 16, 16), torch.rand(3, 2, 16, 16)
    parameters = draw_views(3, torch.Generator().manual_seed(0), moves=False)
    changed, grid = strong_view(images, parameters)
    torch.testing.assert_close(move_labels(labels, grid), labels, atol=1e-5, rtol=0)
    assert (changed - images).abs().mean() > 0.02
    moving = draw_views(3, torch.Generator().manual_seed(0))
    torch.testing.assert_close(moving.gamma, parameters.gamma)  # the same random numbers


def test_images_of_one_channel_are_moved_without_a_change_of_colour():
    images = torch.rand(2, 1, 16, 16)
    parameters = draw_views(2, torch.Generator().manual_seed(0))
    moved, grid = strong_view(images, parameters)
    assert torch.equal(moved, move_labels(images, grid))
