import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from ttdg.metrics.distance import Distances, distances, pooled_distances


def scatter(seed: int, share: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    h, w = (int(size) for size in torch.randint(1, 40, (2,), generator=generator))
    pixels = torch.rand(3, h, w, generator=generator) < share
    pixels[:, int(seed % h), int(seed % w)] = True
    return pixels


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.01, 0.3, 1.0]), st.floats(0.1, 5), st.floats(0.1, 5))
def test_distances_are_those_of_scipys_transform(seed, share, height, width):
    targets = scatter(seed, share)
    spacing = torch.tensor([[height, width], [width, height], [1, 1]], dtype=torch.float64)
    found = distances(torch.ones_like(targets), targets, spacing).value.view(targets.shape)
    for image, pixel, values in zip(targets.numpy(), spacing.tolist(), found.numpy(), strict=True):
        np.testing.assert_allclose(values, distance_transform_edt(~image, sampling=pixel), atol=1e-9)


def test_without_targets_every_distance_is_infinite():
    pixels = torch.ones(1, 3, 4, dtype=torch.bool)
    assert distances(pixels, ~pixels, torch.ones(1, 2, dtype=torch.float64)).value.isinf().all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.floats(0, 100), max_size=30), min_size=1, max_size=6), st.floats(0, 1))
def test_each_owner_has_numpys_mean_and_percentile(lists, rank):
    value = torch.tensor([number for owned in lists for number in owned], dtype=torch.float64)
    count = torch.tensor([len(owned) for owned in lists])
    owner = torch.arange(len(lists)).repeat_interleave(count)
    order = torch.randperm(len(value), generator=torch.Generator().manual_seed(0))
    listed = Distances(value[order], owner[order], count)
    for owned, percentile, mean in zip(lists, listed.percentile(rank), listed.mean(), strict=True):
        if owned:
            np.testing.assert_allclose(percentile, np.percentile(owned, 100 * rank), atol=1e-9)
            np.testing.assert_allclose(mean, np.mean(owned), atol=1e-9)


def test_pooled_lists_keep_their_owners():
    these = Distances(torch.tensor([1.0, 5.0]), torch.tensor([0, 1]), torch.tensor([1, 1]))
    those = Distances(torch.tensor([3.0]), torch.tensor([0]), torch.tensor([1, 0]))
    assert pooled_distances(these, those).mean().tolist() == [2, 5]
