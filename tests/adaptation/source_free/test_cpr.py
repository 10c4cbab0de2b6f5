import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.adaptation import adapt
from ttdg.adaptation.source_free.affinity import (
    OFFSETS,
    AffinityHead,
    affinity_loss,
    pair_distances,
    random_walk,
    walk_weights,
)
from ttdg.adaptation.source_free.cpr import calibrated
from ttdg.networks import NetworkSpec, Segmenter

STILL = {"statistics": "source"}
QUICK = {"epochs": 1, "affinity_epochs": 2, "samples": 2}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Segmenter(NetworkSpec(labels=3, encoder="light")).eval()


def some_images(count=4, size=32, seed=0):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed)) - 0.4


def features(height=9, width=10, seed=0, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(2, 2, 4, height, width, generator=g)


def dense_transition(g, beta):
    """The published dense matrix for one image and structure, from all pairs of cells."""
    h, w = g.shape[1:]
    a = torch.eye(h * w, dtype=torch.float64)
    for y in range(h - 3):
        for x in range(3, w - 3):
            for dy, dx in ((dy, dx) for dy in range(4) for dx in range(-3, 4)):
                if (dy == 0 and dx <= 0) or dy**2 + dx**2 >= 16:
                    continue
                i, j = y * w + x, (y + dy) * w + x + dx
                a[i, j] = a[j, i] = math.exp(-(g[:, y, x] - g[:, y + dy, x + dx]).abs().mean().item()) ** beta
    return a / a.sum(0, keepdim=True)


def test_pairs_are_the_half_plane_within_four_cells():
    assert len(OFFSETS) == len(set(OFFSETS)) == 3 + 7 + 7 + 5
    assert not any((-dy, -dx) in OFFSETS for dy, dx in OFFSETS)
    assert all(dy**2 + dx**2 < 16 for dy, dx in OFFSETS)


@pytest.mark.parametrize("doublings", [0, 1, 2])
def test_the_walk_is_the_row_vector_times_the_squared_matrix(doublings):
    g = features()
    weights = walk_weights(pair_distances(g), 9, 10, 2.0)
    p = torch.rand(2, 2, 9, 10, generator=torch.Generator().manual_seed(1))
    found = random_walk(p, weights, 2**doublings)
    for n in range(2):
        for k in range(2):
            t = dense_transition(g[n, k], 2.0)
            assert torch.allclose(t.sum(0), torch.ones(90, dtype=torch.float64))
            for _ in range(doublings):
                t = t @ t
            expected = p[n, k].flatten().double() @ t
            assert torch.allclose(found[n, k].flatten().double(), expected, atol=1e-5)


@given(height=st.integers(1, 12), width=st.integers(1, 12), steps=st.integers(0, 5), value=st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_a_constant_map_stays_constant_at_any_size(height, width, steps, value):
    weights = walk_weights(pair_distances(features(height, width)), height, width, 2.0)
    p = torch.full((2, 2, height, width), value)
    assert torch.allclose(random_walk(p, weights, steps), p, atol=1e-5)


def test_identical_features_have_an_affinity_of_one_and_sharp_ones_do_not_walk():
    assert (pair_distances(torch.ones(1, 1, 4, 9, 9)) == 0).all()
    p = torch.rand(2, 2, 9, 10)
    frozen = walk_weights(pair_distances(features()), 9, 10, 1e6)
    assert torch.allclose(random_walk(p, frozen, 8), p)


def test_the_affinity_loss_equals_a_loop_over_all_pairs():
    g, height, width = features(8, 9), 8, 9
    r = torch.Generator().manual_seed(3)
    labels = torch.randint(2, (2, 2, height, width), generator=r).float()
    known = torch.randint(2, (2, 2, height, width), generator=r).float()
    total = 0.0
    for k in range(2):
        sets = {"bg": [], "fg": [], "diff": []}
        for n, y, x in torch.cartesian_prod(torch.arange(2), torch.arange(5), torch.arange(3, 6)).tolist():
            for dy, dx in OFFSETS:
                u, v = (n, k, y, x), (n, k, y + dy, x + dx)
                if not (known[u] and known[v]):
                    continue
                a = math.exp(-(g[n, k, :, y, x] - g[n, k, :, y + dy, x + dx]).abs().mean().item())
                if labels[u] != labels[v]:
                    sets["diff"].append(-math.log(1 - a + 1e-5))
                else:
                    sets["fg" if labels[u] else "bg"].append(-math.log(a + 1e-5))
        mean = {name: sum(values) / len(values) for name, values in sets.items()}
        total += (mean["bg"] / 4 + mean["fg"] / 4 + mean["diff"] / 2) / 2
    assert affinity_loss(pair_distances(g), labels, known).item() == pytest.approx(total, rel=1e-3)


def test_a_head_learns_to_tell_two_regions_apart():
    cells = torch.zeros(2, 3, 16, 16)
    cells[:, 0, :, 8:] = 1
    cells += 0.1 * torch.randn(cells.shape, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(2, 1, 16, 16)
    labels[..., 8:] = 1
    head = AffinityHead(3, 1, torch.Generator().manual_seed(0))
    optimiser, seen = torch.optim.Adam(head.parameters(), 3e-2), []
    for _ in range(40):
        loss = affinity_loss(pair_distances(head(cells)), labels, torch.ones_like(labels))
        seen.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert seen[-1] < 0.5 * seen[0]
    p = torch.where(labels > 0, 0.9, 0.1)
    p[:, :, 8, 12] = 0.0  # a hole, which the walk fills
    refined = random_walk(p, walk_weights(pair_distances(head(cells)), 16, 16, 2.0), 4)
    assert refined[:, :, 8, 12].min() > 0.4
    assert refined[:, :, 8, 2].max() < 0.3


def test_calibration_makes_the_maximum_one_and_keeps_zero():
    maps = torch.rand(2, 2, 4, 4)
    maps[0, 0] = 0
    found = calibrated(maps)
    assert torch.allclose(found.amax((2, 3))[1], torch.ones(2))
    assert (found[0, 0] == 0).all()


def test_refined_outer_structures_contain_inner_ones(network):
    adapter = adapt(network, "cpr", **QUICK, **STILL)
    adapter.learn([some_images(6)])
    refined = adapter.memory.columns["refined"][:6]
    assert (refined[:, 0] >= refined[:, 1]).all()
    assert (refined.amax((2, 3)) == 255).all()


def test_without_a_rate_and_with_the_sources_statistics_the_answer_is_the_sources(network):
    adapter = adapt(network, "cpr", lr=0.0, **QUICK, **STILL)
    adapter.learn([some_images(6)])
    assert not torch.equal(
        adapter.affinity.convolution.weight, adapter._start_of_affinity["convolution.weight"]
    )
    with torch.no_grad():
        assert torch.equal(adapter.predict_frozen(some_images()), network(some_images()))


def test_learning_the_affinity_moves_the_statistics_and_no_weight(network):
    adapter = adapt(network, "cpr", lr=0.0, **QUICK)
    adapter.learn([some_images(6)])
    assert all(
        torch.equal(a, b) for a, b in zip(adapter.network.parameters(), network.parameters(), strict=True)
    )
    assert any(
        not torch.equal(a, b) for a, b in zip(adapter.network.buffers(), network.buffers(), strict=True)
    )


def test_kept_pixels_are_sure_and_agree_with_their_prototype(network):
    adapter, seen = adapt(network, "cpr", **QUICK, **STILL), []
    adapter._replay = lambda step, strong, labels, keep: (seen.append((labels, keep)), torch.tensor(0.0))[1]
    adapter.learn([some_images(4)])
    labels, keep = seen[0]
    assert keep.any()
    refined = adapter.memory.columns["refined"][:4].float() / 255
    rows = [int((labels == (refined[i] > 0.75)).flatten(1).all(1).nonzero()[0]) for i in range(4)]
    unsure = (refined >= 0.4) & (refined <= 0.85)
    assert not keep[rows][unsure].any()


def test_reset_forgets_the_affinity(network):
    adapter = adapt(network, "cpr", steps=1, draw=2, samples=2)
    first = adapter(some_images())
    adapter.reset()
    weights = adapter.affinity.convolution.weight
    assert torch.equal(weights, adapter._start_of_affinity["convolution.weight"])
    assert torch.equal(adapter(some_images()), first)
