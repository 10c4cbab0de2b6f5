import copy

import pytest
import torch
from torch import nn

from ttdg.adapt import adapt
from ttdg.adapt.dua import momentum


def a_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)) + 2


def test_the_momentum_sequence_is_the_published_one():
    values = [momentum(t, 0.94, 0.005) for t in (1, 2, 3)]
    assert values == pytest.approx([0.099, 0.09336, 0.0880584])
    assert momentum(10**6, 0.94, 0.005) == pytest.approx(0.005)


def test_statistics_move_by_the_momentum_towards_those_of_the_views():
    """The first layer sees a 1×1 convolution, whose statistics no symmetry changes."""
    network = a_network()
    adapter = adapt(network, "dua")
    adapter(X)
    h = network[0](X).detach()
    m, eight = momentum(1, 0.94, 0.005), h.repeat(8, 1, 1, 1)
    assert torch.allclose(adapter.network[1].running_mean, m * h.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(adapter.network[1].running_var, (1 - m) + m * eight.var((0, 2, 3)), atol=1e-5)


def test_the_answer_is_the_network_with_the_moved_statistics():
    adapter = adapt(a_network(), "dua")
    answer = adapter(X)
    moved = copy.deepcopy(a_network())
    moved.load_state_dict(adapter.network.state_dict())
    with torch.no_grad():
        assert torch.allclose(answer, moved(X), atol=1e-6)


def test_a_long_stream_ends_at_its_own_statistics():
    network = a_network()
    adapter = adapt(network, "dua", least=0.1)
    for _ in range(100):
        adapter(X)
    assert torch.allclose(adapter.network[1].running_mean, network[0](X).mean((0, 2, 3)), atol=1e-3)
