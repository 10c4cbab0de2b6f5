import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ttdg.adapt import entropy
from ttdg.adapt.dltta import discrepancy, rate
from ttdg.errors import UserError


def images(seed: int, count: int = 1) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


@given(st.floats(0, 50), st.floats(0, 50), st.sampled_from(["exponential", "linear"]))
def test_the_rate_never_falls_as_the_discrepancy_grows(a, b, rule):
    low, high = sorted((a, b))
    assert rate(1e-4, low, rule) <= rate(1e-4, high, rule)
    assert 0.99e-5 <= rate(1e-4, a, rule) <= 1.01e-3


def test_the_rate_is_the_published_one():
    assert rate(1.0, 0.7, "exponential") == pytest.approx(math.exp(0.7))
    assert rate(1.0, 0.7, "linear") == pytest.approx(0.7)


def test_the_memory_is_first_in_first_out_and_holds_no_more_than_its_size(ready):
    adapter = ready("dltta").adapt("dltta", capacity=5, lr=0.0)
    keys = []
    for seed in range(4):
        adapter(images(seed, 2))
        keys.append(adapter.memory.columns[0][-2:].clone())
        assert len(adapter.memory) == min(5, 2 * (seed + 1))
    assert torch.equal(adapter.memory.columns[0], torch.cat(keys)[-5:])


def test_the_same_image_again_has_no_discrepancy(ready):
    adapter = ready("dltta").adapt("dltta", neighbours=1, temperature=1.0, lr=0.0)
    adapter.lr = 1.0  # to read the rate off; a step of 0 leaves the network as it is
    adapter.apply = lambda gradients, lr: None
    adapter(images(0))
    adapter(images(0))
    assert adapter.rate == pytest.approx(1.0, abs=1e-5)
    adapter(images(1) * 5)
    assert adapter.rate > 1.001


def test_the_rate_is_the_plain_one_until_the_memory_is_warm(ready):
    adapter = ready("dltta").adapt("dltta", neighbours=3, lr=1e-3)
    rates = []
    for seed in range(5):
        adapter(images(seed))
        rates.append(adapter.rate)
    assert rates[:3] == [1e-3] * 3
    assert all(value != 1e-3 for value in rates[3:])


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_the_discrepancy_is_the_symmetric_kl(head):
    z, y = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.randn(2, 3, 4, 4, dtype=torch.float64)
    p, q = entropy.probabilities(z / 4, head), entropy.probabilities(y, head)
    both = (p - q) * (p.log() - q.log())
    if head == "sigmoid":
        both = (both + (q - p) * ((1 - p).log() - (1 - q).log())) / 3
    assert torch.allclose(discrepancy(z, y, 4.0, head), both.sum(1).mean())
    assert discrepancy(z, z, 1.0, head).item() == pytest.approx(0, abs=1e-12)


def test_it_needs_a_network_in_two_halves(ready):
    from ttdg.adapt import adapt

    with pytest.raises(UserError, match="no encode and decode"):
        adapt(ready("tent").network, "dltta")
