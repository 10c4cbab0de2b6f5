"""Controls of carried labels: nearest cells of sure images, and matching to single sure images."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from ttdg.adaptation.universe import carrier_controls
from ttdg.adaptation.universe.carried_labels import carry, source_points
from ttdg.adaptation.universe.carrier_controls import (
    CellBank,
    NeighbourCarrier,
    PairwiseCarrier,
    make_carrier,
)
from ttdg.adaptation.universe.carriers import CellBatch, UniverseCarrier
from ttdg.prior import MorphologyPrior, prior_for

WIDTH, LABELS = 6, 3
SEEDS = st.integers(0, 999)
CONTROLS = pytest.mark.parametrize("name", ["neighbours", "pairwise"])


def a_prior(seed: int = 0) -> MorphologyPrior:
    torch.manual_seed(seed)
    widths = dict.fromkeys(("e2", "e3", "d2"), 4)
    return prior_for(widths, LABELS, node_dim=WIDTH, points=3, per_tissue=3).requires_grad_(False)


def some_cells(images: int, seed: int, size: tuple[int, int] = (4, 5)) -> CellBatch:
    generator = torch.Generator().manual_seed(seed)
    features = F.normalize(torch.randn(images, WIDTH, *size, generator=generator), dim=1)
    labels = (2 * torch.randn(images, LABELS, *size, generator=generator)).softmax(1)
    return CellBatch(features, labels, 0.1 + torch.rand(images, generator=generator))


def parts_of(cells: CellBatch, sizes: list[int]):
    """The same images in batches, as a carrier reads them."""
    parts = zip(*(x.split(sizes) for x in cells), strict=True)
    batches = [CellBatch(*part) for part in parts]
    return lambda: iter(batches)


def refreshed(name: str, cells: CellBatch, prior: MorphologyPrior | None = None):
    carrier = make_carrier(name, prior or a_prior(), seed=0)
    carrier.refresh(lambda: [cells])
    return carrier


def test_each_name_makes_its_carrier():
    made = {name: type(make_carrier(name, a_prior(), 0)) for name in ("universe", "neighbours", "pairwise")}
    assert made == {"universe": UniverseCarrier, "neighbours": NeighbourCarrier, "pairwise": PairwiseCarrier}


@CONTROLS
@given(seed=SEEDS, images=st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_carried_labels_are_distributions(name, seed, images):
    carrier = refreshed(name, some_cells(images, seed))
    carried = carrier.carry(some_cells(2, seed + 1, size=(3, 7)).features)
    assert carried.shape == (2, LABELS, 3, 7)
    assert carried.min() >= 0
    assert torch.allclose(carried.sum(1), torch.ones(()), atol=1e-5)


@CONTROLS
def test_without_a_sure_image_cells_take_the_labels_of_the_source_points(name):
    prior, cells = a_prior(), some_cells(3, 0)
    expected = carry(source_points(prior), cells.features, prior.spec.tau)
    carrier = make_carrier(name, prior, 0)
    assert torch.equal(carrier.carry(cells.features), expected)
    carrier.refresh(lambda: [cells._replace(certainty=torch.zeros(3))])
    assert torch.equal(carrier.carry(cells.features), expected)
    carrier.refresh(lambda: [cells])
    assert not torch.allclose(carrier.carry(cells.features), expected, atol=1e-2)
    carrier.reset()
    assert torch.equal(carrier.carry(cells.features), expected)
    assert not any(value.any() for value in carrier.tensors().values())


@CONTROLS
@given(seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_labels_of_an_unsure_image_are_ignored(name, seed):
    cells = some_cells(3, seed)
    cells.certainty[1] = 0
    other = cells.labels.clone()
    other[1] = other[1].flip(0)
    one, two = refreshed(name, cells), refreshed(name, cells._replace(labels=other))
    assert torch.equal(one.carry(cells.features), two.carry(cells.features))


@CONTROLS
@given(sizes=st.sampled_from([[5], [1, 4], [2, 2, 1]]), seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_the_batches_of_a_site_do_not_matter(name, sizes, seed):
    cells = some_cells(5, seed)
    whole, parts = (make_carrier(name, a_prior(), 0) for _ in range(2))
    whole.refresh(lambda: [cells])
    parts.refresh(parts_of(cells, sizes))
    assert torch.allclose(whole.carry(cells.features), parts.carry(cells.features), atol=1e-5)


@CONTROLS
def test_labels_of_a_sure_image_reach_an_unsure_image_with_the_same_features(name):
    features = some_cells(1, 0, size=(32, 32)).features.expand(2, -1, -1, -1)
    labels = torch.zeros(2, LABELS, 32, 32)
    labels[0, 2], labels[1, 0] = 1, 1  # the sure image, and the unsure image
    carrier = refreshed(name, CellBatch(features, labels, torch.tensor([0.9, 0.0])))
    assert (carrier.carry(features[1:])[:, 2] > 0.999).all()


@given(seed=SEEDS, images=st.integers(1, 3))
@settings(max_examples=10, deadline=None)
def test_a_cell_takes_the_mean_label_of_its_nearest_cells_weighted_by_the_certainty_of_their_images(
    seed, images
):
    cells, new = some_cells(images, seed), some_cells(1, seed + 1)
    found = refreshed("neighbours", cells).carry(new.features)[0].flatten(1).T.numpy()
    bank, labels = (x.movedim(1, -1).flatten(0, 2).double().numpy() for x in cells[:2])
    weights = cells.certainty.double().repeat_interleave(20).numpy()
    for cell, taken in zip(new.features[0].flatten(1).T.double().numpy(), found, strict=True):
        order = np.argsort(-(bank @ cell))
        near, following = order[: carrier_controls.NEIGHBOURS], order[carrier_controls.NEIGHBOURS]
        if (bank[near[-1]] - bank[following]) @ cell < 1e-5:
            continue  # rounding decides which of the two is nearer
        expected = (weights[near, None] * labels[near]).sum(0) / weights[near].sum()
        assert np.allclose(taken, expected, atol=1e-4)


def test_the_bank_is_a_sample_of_all_sure_cells(monkeypatch):
    monkeypatch.setattr(carrier_controls, "BANK", 200)
    size, images = (20, 20), 6
    numbers = torch.arange(images).float()[:, None, None, None]
    cells = some_cells(images, 0, size)
    certainty = torch.tensor([0.5, 0.0, 0.6, 0.7, 0.0, 0.8])
    carrier = NeighbourCarrier(a_prior(), seed=0)
    site = CellBatch(cells.features, (numbers / 6).expand(-1, LABELS, *size), certainty)
    carrier.refresh(parts_of(site, [2, 2, 2]))
    from_image = (6 * carrier.bank.labels[:, 0]).round().long()
    counts = torch.bincount(from_image, minlength=images)
    assert counts.sum() == 200
    assert counts[1] == counts[4] == 0
    assert all(25 <= counts[image] <= 75 for image in (0, 2, 3, 5))  # 50 on average, standard deviation 6
    assert torch.equal(carrier.bank.weights, certainty[from_image])


def test_an_image_takes_the_mean_of_what_single_references_carry(monkeypatch):
    monkeypatch.setattr(carrier_controls, "GRID", 3)
    monkeypatch.setattr(carrier_controls, "PARTNERS", 2)
    prior = a_prior()
    cells, new = some_cells(5, 0, size=(3, 3)), some_cells(1, 1, size=(3, 3))
    carrier = refreshed("pairwise", cells, prior)
    found = carrier.carry(new.features)[0].flatten(1).T.numpy()
    v = new.features[0].flatten(1).T.double().numpy()
    references = cells.features.flatten(2).movedim(1, 2).double().numpy()
    labels = cells.labels.flatten(2).movedim(1, 2).double().numpy()
    means = references.mean(1)
    cosines = means @ v.mean(0) / np.linalg.norm(means, axis=1)
    total, weight = 0.0, 0.0
    for image in np.argsort(-cosines)[:2]:
        X = np.exp(v @ references[image].T / prior.spec.tau)
        X /= X.sum(1, keepdims=True)
        total += cells.certainty[image].item() * (X @ labels[image])
        weight += cells.certainty[image].item()
    assert np.allclose(found, total / weight, atol=1e-4)


def test_the_references_are_the_surest_images(monkeypatch):
    monkeypatch.setattr(carrier_controls, "REFERENCES", 3)
    cells = some_cells(6, 0)._replace(certainty=torch.tensor([0.2, 0.9, 0.0, 0.8, 0.5, 0.1]))
    carrier = PairwiseCarrier(a_prior())
    carrier.refresh(parts_of(cells, [4, 2]))
    assert torch.allclose(carrier.bank.weights, torch.tensor([0.9, 0.8, 0.5]))


@given(order=st.permutations(range(6)), split=st.integers(0, 6))
@settings(max_examples=20, deadline=None)
def test_a_bank_keeps_the_rows_with_the_largest_keys_and_no_row_without_weight(order, split):
    bank = CellBank(3, (1,), (1,), torch.zeros(()))
    keys = torch.tensor([0.1, 0.9, 0.5, 0.7, 0.3, 0.8])[list(order)]
    weights = torch.where(keys == 0.9, 0.0, 1.0)
    for rows in (slice(0, split), slice(split, None)):
        bank.add(keys[rows], keys[rows, None], keys[rows, None], weights[rows])
    assert torch.allclose(bank.features[:, 0], torch.tensor([0.8, 0.7, 0.5]))
