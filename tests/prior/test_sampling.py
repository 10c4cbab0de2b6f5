"""Nodes: an exact number per class, evenly spread, and at least one for every structure."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.errors import UserError
from ttdg.prior import sample_nodes
from ttdg.prior.sampling import class_cells, spread, z_order


def blob_labels(seed: int, size: int = 16) -> torch.Tensor:
    coarse = torch.randint(0, 3, (2, 1, size // 4, size // 4), generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse.float(), scale_factor=4, mode="nearest")[:, 0].long()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 999), st.integers(1, 40))
def test_each_class_gives_its_number_of_nodes_or_all_its_cells_without_repeats(seed, count):
    labels = blob_labels(seed)
    index, real = spread(class_cells(labels, (1, 2), (16, 16)), count)
    for image in range(2):
        for place, label in enumerate((1, 2)):
            picked = index[image, place][real[image, place]]
            assert len(picked) == min(count, int((labels[image] == label).sum()))
            assert len(picked.unique()) == len(picked)
            assert (labels[image].flatten()[picked] == label).all()


def test_nodes_are_spread_over_both_axes_where_raster_order_would_hit_one_column():
    cells = torch.zeros(1, 1, 16, 16).bool()
    cells[0, 0, 3:13, 3:13] = True
    index, _ = spread(cells, 10)
    rows, cols = index // 16, index % 16
    assert len(rows.unique()) >= 5
    assert len(cols.unique()) >= 5


@pytest.mark.parametrize("count", [8, 16, 32])
def test_no_cell_of_a_disc_is_far_from_a_node(count):
    y, x = torch.meshgrid(torch.arange(40), torch.arange(40), indexing="ij")
    disc = ((y - 20) ** 2 + (x - 19) ** 2 < 15**2)[None, None]
    index, _ = spread(disc, count)
    nodes = torch.stack([index[0, 0] // 40, index[0, 0] % 40], 1).float()
    farthest = torch.cdist(disc[0, 0].nonzero().float(), nodes).amin(1).max()
    area_per_node = float(disc.sum()) / count
    assert farthest < 2.2 * area_per_node**0.5


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 63), st.integers(0, 63))
def test_a_single_pixel_gives_a_node_on_every_level_however_coarse(y, x):
    labels = torch.zeros(1, 64, 64).long()
    labels[0, y, x] = 2
    levels = [torch.rand(1, 3, size, size) for size in (64, 16, 4, 2)]
    nodes = sample_nodes(levels, labels, classes=(1, 2), per_class=5)
    assert nodes.mask.sum() == 4
    assert (nodes.labels[nodes.mask] == 2).all()
    near = (nodes.coordinates[nodes.mask] - torch.tensor([y + 0.5, x + 0.5]) / 64).abs().amax(1)
    assert (near <= torch.tensor([1 / 64, 1 / 16, 1 / 4, 1 / 2]) / 2 + 1e-6).all()


def test_a_node_carries_the_features_of_its_cell():
    labels = blob_labels(0)
    y, x = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    level = torch.stack([(y + 0.5) / 8, (x + 0.5) / 8]).expand(2, 2, 8, 8)
    nodes = sample_nodes([level], labels, classes=(0, 1, 2), per_class=6)
    assert nodes.mask.any()
    assert torch.allclose(nodes.features, nodes.coordinates)


def test_padding_is_zero_and_the_size_fixed():
    nodes = sample_nodes(
        [torch.rand(2, 4, 8, 8)] * 2, torch.zeros(2, 32, 32).long(), classes=(1, 2), per_class=5
    )
    assert nodes.features.shape == (2, 2 * 2 * 5, 4)
    assert not nodes.mask.any()
    assert (nodes.features == 0).all()
    assert (nodes.labels == 0).all()


def test_labels_count_the_classes_from_one_so_that_background_may_be_one():
    labels = blob_labels(1)
    nodes = sample_nodes([torch.rand(2, 4, 16, 16)], labels, classes=(0, 2), per_class=200)
    assert (nodes.labels == 1).sum() == (labels == 0).sum()
    assert (nodes.labels == 2).sum() == (labels == 2).sum()


def test_gradients_reach_the_sampled_cells_only():
    level = torch.rand(2, 4, 16, 16, requires_grad=True)
    nodes = sample_nodes([level], blob_labels(2), classes=(1, 2), per_class=3)
    touched = torch.autograd.grad(nodes.features.sum(), level)[0].abs().sum(1) > 0
    assert touched.sum() == nodes.mask.sum()


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (8, 8)])
def test_z_order_visits_every_cell_once(shape):
    assert torch.equal(z_order(*shape).sort().values, torch.arange(shape[0] * shape[1]))


def test_levels_with_unequal_channels_raise_an_error_with_a_remedy():
    with pytest.raises(UserError, match="project them to one width"):
        sample_nodes(
            [torch.rand(1, 3, 4, 4), torch.rand(1, 5, 4, 4)],
            torch.ones(1, 8, 8).long(),
            classes=(1,),
            per_class=2,
        )
