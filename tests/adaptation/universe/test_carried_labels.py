"""Labels travel from sure images to others along the matching of both to the universe."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from ttdg.adaptation.universe.carried_labels import KAPPA, SitePoints, SiteSums, carry, source_points
from ttdg.prior import MorphologyPrior, prior_for

WIDTH = 6
SEEDS = st.integers(0, 999)
LABELS = st.integers(2, 4)


def a_universe(labels: int, seed: int, points: int = 3) -> MorphologyPrior:
    prior = prior_for(
        dict.fromkeys(("e2", "e3", "d2"), 4), labels, node_dim=WIDTH, points=points, per_tissue=points
    )
    prior.requires_grad_(False)
    # Embeddings are not unit vectors, as after training.
    prior.universe.copy_(torch.randn(prior.universe.shape, generator=torch.Generator().manual_seed(seed)))
    return prior


def some_cells(images: int, labels: int, seed: int, size: tuple[int, int] = (3, 4)):
    """Unit features, label distributions and certainties of images."""
    generator = torch.Generator().manual_seed(seed)
    features = F.normalize(torch.randn(images, WIDTH, *size, generator=generator), dim=1)
    distributions = (2 * torch.randn(images, labels, *size, generator=generator)).softmax(1)
    return features, distributions, torch.rand(images, generator=generator)


def site_of(source: SitePoints, tau: float, *batches, start: SitePoints | None = None) -> SitePoints:
    sums = SiteSums(start or source, source, tau)
    for batch in batches:
        sums.add(*batch)
    return sums.result()


def by_loops(source: SitePoints, site: SitePoints, tau: float, features, labels, certainty):
    """The two sums of the module's docstring, cell by cell."""
    u0, Lambda, u = (x.double().numpy() for x in (source.points, source.labels, site.points))
    points, sums = KAPPA * u0, KAPPA * Lambda
    for image in range(len(features)):
        w = certainty[image].item()
        for y, x in np.ndindex(*features.shape[2:]):
            v, label = (t[image, :, y, x].double().numpy() for t in (features, labels))
            A = np.exp(u @ v / tau)
            A /= A.sum()
            for d in range(len(u)):
                points[d] += w * A[d] * (Lambda[d] @ label) * v
                sums[d] += w * A[d] * label
    return points / np.linalg.norm(points, axis=1, keepdims=True), sums / sums.sum(1, keepdims=True)


@given(labels=LABELS, seed=SEEDS, random=st.booleans())
@settings(max_examples=25, deadline=None)
def test_points_of_the_source_carry_the_posterior_of_the_prior(labels, seed, random):
    prior = a_universe(labels, seed)
    prior = prior.with_random_universe() if random else prior
    features = some_cells(3, labels, seed)[0]
    carried = carry(source_points(prior), features, prior.spec.tau)
    assert torch.allclose(carried, prior.posterior(features), atol=1e-6)


@given(labels=LABELS, seed=SEEDS, images=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_carried_labels_and_labels_of_points_are_distributions_and_points_have_unit_length(
    labels, seed, images
):
    prior = a_universe(labels, seed)
    source, cells = source_points(prior), some_cells(images, labels, seed)
    site = site_of(source, prior.spec.tau, cells)
    for distribution in (site.labels, carry(site, cells[0], prior.spec.tau)):
        assert distribution.min() >= 0
        assert torch.allclose(distribution.sum(1), torch.ones(()), atol=1e-5)
    assert torch.allclose(site.points.norm(dim=1), torch.ones(()), atol=1e-5)


@given(labels=LABELS, seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_images_without_certainty_leave_the_points_of_the_source(labels, seed):
    prior = a_universe(labels, seed)
    source, (features, distributions, certainty) = source_points(prior), some_cells(3, labels, seed)
    site = site_of(source, prior.spec.tau, (features, distributions, 0 * certainty))
    assert torch.allclose(site.points, F.normalize(prior.universe, dim=1), atol=1e-6)
    assert torch.equal(site.labels, source.labels)
    one_label = F.one_hot(torch.arange(labels + 1) % labels, labels).repeat_interleave(3, 0)
    assert torch.equal(source.labels.long(), one_label)  # the ring, the last tissue, is background


@given(labels=LABELS, seed=SEEDS, iterations=st.integers(1, 2), tau=st.sampled_from([0.1, 0.3]))
@settings(max_examples=15, deadline=None)
def test_the_points_of_a_site_equal_sums_over_its_cells(labels, seed, iterations, tau):
    source, cells = source_points(a_universe(labels, seed)), some_cells(2, labels, seed)
    site = source
    for _ in range(iterations):
        points, distributions = by_loops(source, site, tau, *cells)
        site = site_of(source, tau, cells, start=site)
        assert np.allclose(site.points.numpy(), points, atol=1e-4)
        assert np.allclose(site.labels.numpy(), distributions, atol=1e-4)


@given(order=st.permutations(range(5)), first=st.integers(0, 5), seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_neither_the_order_of_images_nor_their_batches_matter(order, first, seed):
    prior = a_universe(3, seed)
    source, cells = source_points(prior), some_cells(5, 3, seed)
    whole = site_of(source, prior.spec.tau, cells)
    shuffled = [x[list(order)] for x in cells]
    parts = [[x[:first] for x in shuffled], [x[first:] for x in shuffled]]
    other = site_of(source, prior.spec.tau, *parts)
    assert torch.allclose(whole.points, other.points, atol=1e-5)
    assert torch.allclose(whole.labels, other.labels, atol=1e-5)


@pytest.mark.parametrize("random", [False, True])
def test_labels_of_a_sure_image_reach_an_unsure_image_with_the_same_features(random):
    """The sure image says that cells which the source takes for background are a structure."""
    prior = a_universe(2, 0)
    prior = prior.with_random_universe() if random else prior
    source, tau = source_points(prior), prior.spec.tau
    features = source.points[0][None, :, None, None].expand(2, WIDTH, 16, 16)  # those of a background point
    distributions = torch.zeros(2, 2, 16, 16)
    distributions[0, 1], distributions[1, 0] = 1, 1  # the sure image, and the unsure image
    before = carry(source, features, tau)[:, 1]
    site = site_of(source, tau, (features, distributions, torch.tensor([1.0, 0.0])))
    after = carry(site, features, tau)[:, 1]
    assert before.max() < 0.5
    assert after.min() > 0.8
    assert torch.equal(after[0], after[1])


@given(seed=SEEDS)
@settings(max_examples=15, deadline=None)
def test_labels_of_an_unsure_image_are_ignored(seed):
    prior = a_universe(3, seed)
    source, (features, labels, certainty) = source_points(prior), some_cells(3, 3, seed)
    certainty[1] = 0
    one = site_of(source, prior.spec.tau, (features, labels, certainty))
    other = site_of(
        source, prior.spec.tau, (features, labels.index_fill(0, torch.tensor(1), 1 / 3), certainty)
    )
    assert torch.equal(one.points, other.points)
    assert torch.equal(one.labels, other.labels)


def test_a_point_moves_only_to_cells_whose_label_agrees_with_its_tissue():
    prior = a_universe(2, 1)
    source, features = source_points(prior), some_cells(1, 2, 1)[0]
    structure = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1).expand(1, 2, *features.shape[2:])
    site = site_of(source, prior.spec.tau, (features, structure, torch.ones(1)))
    moved = (site.points - source.points).norm(dim=1) > 1e-5
    assert not moved[source.labels[:, 0] == 1].any()
    assert moved[source.labels[:, 1] == 1].any()
