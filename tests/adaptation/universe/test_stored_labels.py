"""The memory keeps labels as bytes, and the expected Dice of each image decides how much it counts."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.adaptation.site_learning.image_memory import ImageMemory
from ttdg.adaptation.universe.stored_labels import LEAST, StoredLabels, as_bytes, notes

DICE = st.lists(st.integers(0, 100).map(lambda x: x / 100), min_size=1, max_size=9)
SEEDS = st.integers(0, 999)


def stored(expected, labels: int = 3, size: int = 8, seed: int = 0):
    """A memory of random images; returns its labels, and the distributions from which it was filled."""
    generator = torch.Generator().manual_seed(seed)
    count = len(expected)
    images = torch.rand(count, 3, size, size, generator=generator)
    judged = (3 * torch.randn(count, labels, size, size, generator=generator)).softmax(1)
    carried = (3 * torch.randn(count, labels, size // 4, size // 4, generator=generator)).softmax(1)
    memory = ImageMemory(None, 0)
    dice = torch.tensor(expected)
    memory.add(images, **notes(judged, dice, carried, torch.ones(count), dice))
    return StoredLabels(memory), judged, carried


@given(seed=SEEDS, labels=st.integers(2, 5))
@settings(max_examples=25, deadline=None)
def test_bytes_differ_from_probabilities_by_at_most_half_a_step(seed, labels):
    generator = torch.Generator().manual_seed(seed)
    p = (5 * torch.randn(2, labels, 4, 4, generator=generator)).softmax(1)
    assert as_bytes(p).dtype == torch.uint8
    assert (as_bytes(p).double() / 255 - p).abs().max() <= 0.5 / 255 + 1e-7


@given(seed=SEEDS, labels=st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_labels_read_at_the_stored_size_are_those_that_were_written(seed, labels):
    reader, judged, carried = stored([0.5, 0.6, 0.7], labels, seed=seed)
    rows = torch.tensor([2, 0])
    for name, written in (("judged", judged), ("carried", carried)):
        read = reader.labels(name, rows, written.shape[2:])
        assert (read - written[rows]).abs().max() < labels / 255


@given(seed=SEEDS, size=st.sampled_from([(8, 8), (3, 5), (16, 9)]))
@settings(max_examples=25, deadline=None)
def test_labels_of_any_size_are_distributions(seed, size):
    reader, *_ = stored([0.5, 0.6], seed=seed)
    for name in ("judged", "carried"):
        labels = reader.labels(name, torch.arange(2), size)
        assert labels.shape == (2, 3, *size)
        assert labels.min() >= 0
        assert torch.allclose(labels.sum(1), torch.ones(()), atol=1e-5)


def test_a_line_one_pixel_wide_is_stored_as_it_is_and_shrinks_to_its_share_of_the_area():
    judged = torch.zeros(1, 2, 8, 8)
    judged[:, 1, :, 3] = 1
    judged[:, 0] = 1 - judged[:, 1]
    memory, one = ImageMemory(None, 0), torch.ones(1)
    memory.add(torch.rand(1, 3, 8, 8), **notes(judged, one, torch.ones(1, 2, 2, 2) / 2, one, one))
    reader = StoredLabels(memory)
    assert torch.allclose(reader.labels("judged", torch.arange(1), (8, 8)), judged, atol=1e-4)
    assert torch.allclose(
        reader.labels("judged", torch.arange(1), (2, 2))[0, 1, 0], torch.tensor([0.25, 0.0]), atol=1e-4
    )


@given(expected=DICE)
@settings(max_examples=50, deadline=None)
def test_ranks_order_the_images_from_the_least_sure_to_the_surest(expected):
    reader, *_ = stored(expected)
    ranks, n = reader.ranks(), len(expected)
    assert torch.allclose(ranks.sort()[0], torch.arange(n) / max(n - 1, 1))
    ordered = reader.expected[ranks.argsort()]
    assert (ordered.diff() >= 0).all()


@given(expected=DICE)
@settings(max_examples=50, deadline=None)
def test_only_the_surer_half_is_certain_by_its_expected_dice(expected):
    reader, *_ = stored(expected)
    certainty, n = reader.certainty(), len(expected)
    surer = n // 2
    assert np.allclose(
        sorted(certainty.tolist(), reverse=True)[:surer], sorted(expected, reverse=True)[:surer]
    )
    assert int((certainty > 0).sum()) <= surer


@given(expected=DICE)
@settings(max_examples=50, deadline=None)
def test_weights_are_squares_of_the_values_with_mean_one(expected):
    reader, *_ = stored(expected)
    squares = np.maximum(np.array(expected), LEAST) ** 2
    weights = reader.weights()
    assert np.allclose(weights.numpy(), squares / squares.mean(), rtol=1e-4)
    assert np.isclose(weights.mean().item(), 1, rtol=1e-5)
    assert weights.min() > 0


def test_free_rows_of_the_memory_do_not_count():
    reader, *_ = stored([0.5, 0.9])
    assert len(reader.memory.columns["expected"]) > 2  # the memory reserves room
    assert all(len(x) == 2 for x in (reader.ranks(), reader.certainty(), reader.weights()))
