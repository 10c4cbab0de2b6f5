import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.errors import UserError
from ttdg.metrics import (
    Scores,
    aggregate,
    alignment_curve,
    dice,
    max_alignment,
    region_masks,
    region_probabilities,
    score,
    score_regions,
    structure,
)

seeds = st.integers(0, 10_000)
FIELDS = ("dice", "alignment", "structure")


def assert_same(ours: Scores, others: Scores) -> None:
    for name in FIELDS:
        torch.testing.assert_close(getattr(ours, name), getattr(others, name), rtol=0, atol=2e-6)


def pick(scores: Scores, index: torch.Tensor) -> Scores:
    return Scores(*(getattr(scores, name)[index] for name in FIELDS))


def test_a_score_is_that_of_its_regions_maps():
    regions = {"disc": (1, 2), "cup": (2,)}
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2, 3, 20, 24, generator=generator)
    labels = torch.randint(0, 3, (2, 20, 24), generator=generator)
    maps = region_probabilities(logits, regions), region_masks(labels, regions)
    assert_same(score(logits, labels, regions), Scores(dice(*maps), alignment_curve(*maps), structure(*maps)))


@settings(max_examples=10, deadline=None)
@given(seeds, st.permutations(range(6)))
def test_permuted_images_have_permuted_scores(draw_maps, seed, order):
    probabilities, truth = draw_maps(seed)
    index = torch.tensor(order)
    assert_same(
        score_regions(probabilities[index], truth[index]), pick(score_regions(probabilities, truth), index)
    )


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_each_image_is_scored_as_if_alone(draw_maps, seed):
    probabilities, truth = draw_maps(seed)
    together = score_regions(probabilities, truth)
    for image in range(len(truth)):
        one = torch.tensor([image])
        assert_same(score_regions(probabilities[one], truth[one]), pick(together, one))


@pytest.mark.parametrize("pixels", [1, 100, 2**25])
def test_the_size_of_slices_changes_no_score(draw_maps, monkeypatch, pixels):
    maps = draw_maps(5)
    usual = score_regions(*maps)
    monkeypatch.setattr("ttdg.metrics.chunks.CACHE_PIXELS", pixels)
    assert_same(score_regions(*maps), usual)


def test_maps_that_require_gradients_are_scored_without_them(draw_maps):
    probabilities, truth = draw_maps(6)
    scores = score_regions(probabilities.requires_grad_(), truth)
    assert not any(getattr(scores, name).requires_grad for name in FIELDS)


@settings(max_examples=10, deadline=None)
@given(seeds, st.integers(1, 7))
def test_means_do_not_depend_on_the_batches(draw_maps, seed, size):
    scores = score_regions(*draw_maps(seed))
    batches = [pick(scores, index) for index in torch.arange(6).split(size)]
    means = aggregate(iter(batches))
    assert means.images == 6
    torch.testing.assert_close(means.dice, scores.dice.mean(0))
    torch.testing.assert_close(means.structure, scores.structure.mean(0))
    torch.testing.assert_close(means.alignment, max_alignment(scores.alignment))


def test_a_missed_image_counts_in_the_mean():
    truth = torch.zeros(4, 1, 8, 8, dtype=torch.bool)
    truth[..., 2:6, 2:6] = True
    maps = truth.float()
    maps[0] = 0
    assert float(aggregate([score_regions(maps, truth)]).dice) == 0.75


def test_no_images_have_no_mean():
    none = torch.zeros(0, 1, 8, 8)
    for batches in ([], [score_regions(none, none.bool())]):
        with pytest.raises(UserError, match="no scored images"):
            aggregate(batches)


def test_scoring_leaves_the_number_of_threads_as_it_was(draw_maps):
    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        score_regions(*draw_maps(7))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(usual)
