"""Signals of predictions whose properties are known."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor
from torch.nn import functional as F

from ttdg.adaptation.judge.candidates import CandidatePredictions
from ttdg.adaptation.judge.signals import Boundary, _connected_share, prediction_signals
from ttdg.metrics import region_probabilities
from ttdg.prior import MorphologyPrior, PriorSpec
from ttdg.prior.locations import PointLocations
from ttdg.prior.universe_signals import label_weights, universe_signals


def signals(evidence, regions, prior):
    """All signals, with the same location for every universe point."""
    d = len(prior.universe)
    locations = PointLocations(torch.ones(d), torch.ones(d), torch.full((d,), 1 / d))
    P = evidence.logits.softmax(2)
    R = region_probabilities(evidence.logits.flatten(0, 1), regions).unflatten(0, P.shape[:2])
    fit = universe_signals(prior, locations, evidence.projected, P, regions)
    return fit | prediction_signals(evidence, P, R, list(regions))


REGIONS, SIDE, LABELS = {"disc": (1, 2), "cup": (2,)}, 32, 3


@pytest.fixture(scope="module")
def prior() -> MorphologyPrior:
    torch.manual_seed(0)
    return MorphologyPrior(PriorSpec(LABELS, (4,), ("e0",), 8, points=6, per_tissue=5))


def evidence_of(labels: Tensor, sharpness: float = 8.0, seed: int = 0) -> CandidatePredictions:
    """Candidates × images of labels, as sharp predictions, over random unit features."""
    k, b = labels.shape[:2]
    logits = (sharpness * F.one_hot(labels, LABELS).movedim(-1, 2).float()).log_softmax(2)
    generator = torch.Generator().manual_seed(seed)
    projected = F.normalize(torch.randn(k, b, 8, SIDE // 4, SIDE // 4, generator=generator), dim=2)
    images = torch.rand(b, 3, SIDE, SIDE, generator=generator)
    return CandidatePredictions(logits, projected, torch.rand(b, 6, generator=generator), images, k)


def squares(k: int, b: int, *corners: tuple[int, int], side: int = 8, label: int = 1) -> Tensor:
    labels = torch.zeros(k, b, SIDE, SIDE, dtype=torch.long)
    for y, x in corners:
        labels[..., y : y + side, x : x + side] = label
    return labels


def random_evidence(k: int = 3, b: int = 2) -> CandidatePredictions:
    torch.manual_seed(1)
    return evidence_of(torch.randint(LABELS, (k, b, SIDE, SIDE)), sharpness=1.0)


@pytest.mark.parametrize("label", range(LABELS))
def test_an_image_of_one_label_alone_gives_finite_signals(prior, label):
    labels = torch.full((2, 2, SIDE, SIDE), label)
    found = signals(evidence_of(labels), REGIONS, prior)
    assert all(value.shape == (2, 2) and value.isfinite().all() for value in found.values())


@pytest.mark.parametrize("side", [1, 3, 30])
def test_odd_sizes_give_finite_signals(prior, side):
    logits = torch.randn(2, 1, LABELS, side, side).log_softmax(2)
    grid = -(-side // 4)
    evidence = CandidatePredictions(
        logits,
        F.normalize(torch.randn(2, 1, 8, grid, grid), dim=2),
        torch.rand(1, 6),
        torch.rand(1, 3, *logits.shape[3:]),
        2,
    )
    assert all(value.isfinite().all() for value in signals(evidence, REGIONS, prior).values())


def test_signals_of_an_image_do_not_depend_on_the_batch(prior):
    whole = random_evidence(3, 2)
    one = CandidatePredictions(
        whole.logits[:, 1:], whole.projected[:, 1:], whole.distance[1:], whole.images[1:], whole.unfused
    )
    together, alone = signals(whole, REGIONS, prior), signals(one, REGIONS, prior)
    assert all(torch.allclose(together[name][:, 1:], alone[name], atol=1e-5) for name in alone)


def test_the_agreement_of_identical_candidates_is_one_and_of_disjoint_ones_zero(prior):
    same = signals(evidence_of(squares(2, 1, (4, 4)), 20.0), REGIONS, prior)
    assert torch.allclose(same["disc agrees with all"], torch.ones(()), atol=1e-4)
    labels = torch.cat([squares(1, 1, (0, 0)), squares(1, 1, (16, 16))])
    apart = signals(evidence_of(labels, 20.0), REGIONS, prior)
    assert apart["disc agrees with 0"][0, 0] == pytest.approx(1, abs=1e-3)
    assert apart["disc agrees with 0"][1, 0] < 1e-2


def test_two_equal_blobs_are_half_in_one_piece(prior):
    logits = evidence_of(squares(1, 1, (4, 4), (20, 20)))
    logits.logits[0, 0, 1, 5, 5] += 1.0  # the first is the more certain one
    found = signals(logits, REGIONS, prior)
    whole = signals(evidence_of(squares(1, 1, (4, 4))), REGIONS, prior)
    assert found["disc in one piece"].item() == pytest.approx(0.5, abs=0.05)
    assert whole["disc in one piece"].item() == pytest.approx(1.0)


def test_a_larger_region_has_more_area_and_a_doubtful_one_more_entropy(prior):
    small, large = (signals(evidence_of(squares(1, 1, (4, 4), side=s)), REGIONS, prior) for s in (6, 16))
    assert small["disc area"] < large["disc area"]
    sure, unsure = (signals(evidence_of(squares(1, 1, (4, 4)), s), REGIONS, prior) for s in (8.0, 1.0))
    assert sure["entropy"] < unsure["entropy"]
    assert sure["disc confidence"] > unsure["disc confidence"]


def test_universe_signals_separate_a_prediction_that_fits_from_one_that_does_not(prior):
    """Features are universe points of the label that the first candidate predicts and the second does not."""
    inside = squares(1, 1, (8, 8), side=16)
    labels = torch.cat([inside, (inside == 0).long()])
    points = prior.universe_points().detach().unflatten(0, (prior.spec.tissues, -1))[:, 0]
    projected = points[inside[0, :, ::4, ::4]].movedim(-1, 1)
    evidence = CandidatePredictions(
        evidence_of(labels).logits,
        projected.expand(2, 1, -1, -1, -1),
        torch.zeros(1, 6),
        torch.rand(1, 3, SIDE, SIDE),
        2,
    )
    found = signals(evidence, REGIONS, prior)
    right, wrong = found["universe margin"][:, 0]
    assert right > wrong + 0.1
    assert found["universe disc agrees"][0, 0] > found["universe disc agrees"][1, 0]
    assert found["universe energy inside"][0, 0] < found["universe energy inside"][1, 0]


def test_a_structure_that_differs_from_its_surroundings_stands_out(prior):
    evidence = evidence_of(squares(2, 1, (8, 8), side=14))
    flat, bright = torch.zeros(1, 3, SIDE, SIDE), torch.zeros(1, 3, SIDE, SIDE)
    bright[..., 8:22, 8:22] = 1
    low, high = (
        signals(replace(evidence, images=images), REGIONS, prior)["disc stands out"][0, 0]
        for images in (flat, bright)
    )
    assert low == 0
    assert high > 1


def test_agreement_is_measured_with_unfused_candidates_only(prior):
    evidence = random_evidence(k=4)
    some = replace(evidence, unfused=2)
    found = signals(some, REGIONS, prior)
    assert {name for name in found if name.startswith("disc agrees with ")} == {
        "disc agrees with 0",
        "disc agrees with 1",
        "disc agrees with all",
    }
    narrowed = CandidatePredictions(
        *(getattr(evidence, n)[:2] for n in ("logits", "projected")), evidence.distance, evidence.images, 2
    )
    alone = signals(narrowed, REGIONS, prior)
    assert all(torch.allclose(found[name][:2], alone[name], atol=1e-5) for name in alone)


def random_masks(height: int, width: int, seed: int, share: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(3, height, width, generator=generator) < share


sides, seeds = st.integers(1, 14), st.integers(0, 1000)


@given(sides, sides, seeds, st.sampled_from([0.03, 0.5, 0.97]))
def test_pixels_near_a_boundary_are_those_of_a_dilation_and_an_erosion(height, width, seed, share):
    masks = random_masks(height, width, seed, share)
    near = Boundary.of(masks)
    for number, mask in enumerate(masks.numpy()):
        dilated, eroded = (
            {
                by: torch.from_numpy(morph(mask, [[1] * (2 * by + 1)] * (2 * by + 1), border_value=border))
                for by in (2, 4)
            }
            for morph, border in ((ndimage.binary_dilation, 0), (ndimage.binary_erosion, 1))
        )
        assert torch.equal(near.band[number].bool(), dilated[2] & ~eroded[2])
        assert torch.equal(near.inner_ring[number].bool(), masks[number] & ~eroded[4])
        assert torch.equal(near.outer_ring[number].bool(), dilated[4] & ~masks[number])


@given(sides, sides, seeds)
def test_the_share_in_one_piece_is_that_of_the_component_of_the_most_probable_cell(height, width, seed):
    R = torch.rand(4, height, width, generator=torch.Generator().manual_seed(seed)) ** 0.7
    for mask, found in zip(R.numpy(), _connected_share(R).tolist(), strict=True):
        pieces = ndimage.label(mask > 0.5, [[1] * 3] * 3)[0]
        best = pieces.flat[mask.argmax()]
        expected = (pieces == best).sum() / (mask > 0.5).sum() if best else 0.0
        assert found == pytest.approx(expected)


@torch.no_grad()
def test_label_weights_divided_by_their_sum_are_the_posterior(prior):
    projected = random_evidence().projected
    weight = label_weights(prior, projected)
    posterior = prior.posterior(projected.flatten(0, 1)).unflatten(0, weight.shape[:2])
    assert torch.allclose(weight / weight.sum(2, keepdim=True), posterior, atol=1e-5)


def test_known_label_weights_do_not_change_the_signals(prior):
    evidence, d = random_evidence(), len(prior.universe)
    locations = PointLocations(torch.ones(d), torch.ones(d), torch.full((d,), 1 / d))
    given_, P = (evidence.projected, evidence.logits.softmax(2))
    computed = universe_signals(prior, locations, given_, P, REGIONS)
    known = universe_signals(prior, locations, given_, P, REGIONS, label_weights(prior, given_))
    assert all(torch.equal(computed[name], known[name]) for name in computed)
