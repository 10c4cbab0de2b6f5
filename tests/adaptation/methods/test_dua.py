import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

from ttdg.adaptation import adapt
from ttdg.adaptation.methods.dua import dua_momentum

adapt = partial(adapt, activation="softmax")


def a_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)) + 2
Y = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2)) * 3 - 1


def test_the_momentum_sequence_is_the_published_one():
    values = [dua_momentum(t, 0.94, 0.005) for t in (1, 2, 3)]
    assert values == pytest.approx([0.099, 0.09336, 0.0880584])
    assert dua_momentum(10**6, 0.94, 0.005) == pytest.approx(0.005)


def test_statistics_move_by_the_momentum_towards_those_of_the_views():
    """The input of the first BatchNorm is a 1×1 convolution; flips and turns do not change its statistics."""
    network = a_network()
    adapter = adapt(network, "dua")
    adapter(X)
    h = network[0](X).detach()
    m, eight = dua_momentum(1, 0.94, 0.005), h.repeat(8, 1, 1, 1)
    assert torch.allclose(adapter.network[1].running_mean, m * h.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(adapter.network[1].running_var, (1 - m) + m * eight.var((0, 2, 3)), atol=1e-5)


@pytest.mark.parametrize("between", [None, math.nan, 1e20], ids=str)
def test_the_momentum_decays_from_batch_to_batch_that_is_not_left_out(between):
    """With 1e20 the prediction is finite but the variance is not."""
    network = a_network()
    adapter, hidden = adapt(network, "dua"), [network[0](x).detach().double() for x in (X, Y)]
    adapter(X)
    if between is not None:
        kept = copy.deepcopy(adapter.network.state_dict())
        adapter(X * between)
        assert all(torch.equal(value, kept[name]) for name, value in adapter.network.state_dict().items())
    adapter(Y)
    mean, var = torch.zeros(4).double(), torch.ones(4).double()
    for m, h in zip((0.099, 0.09336), hidden, strict=True):
        mean = (1 - m) * mean + m * h.mean((0, 2, 3))
        var = (1 - m) * var + m * h.repeat(8, 1, 1, 1).var((0, 2, 3))
    assert torch.allclose(adapter.network[1].running_mean.double(), mean, atol=1e-6)
    assert torch.allclose(adapter.network[1].running_var.double(), var, atol=1e-6)


class Beside(nn.Module):
    """A network whose output depends on a channel that does not pass through BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = a_network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.seen(x[:, :3]) + x[:, 3:]


def test_a_batch_with_an_answer_that_is_not_finite_is_left_out():
    adapter, x = adapt(Beside(), "dua"), torch.cat([X, X[:, :1] * math.nan], 1)
    adapter(x)
    assert torch.equal(adapter.network.seen[1].running_mean, torch.zeros(4))


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
