import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ttdg.adaptation import adapt, losses
from ttdg.adaptation.methods.dltta import discrepancy, dynamic_rate
from ttdg.errors import UserError


def images(seed: int, count: int = 1, size: int = 32) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


@given(st.floats(0, 50), st.floats(0, 50), st.sampled_from(["exponential", "linear"]))
def test_the_rate_never_falls_as_the_discrepancy_grows(a, b, rule):
    low, high = sorted((a, b))
    assert dynamic_rate(1e-4, low, rule) <= dynamic_rate(1e-4, high, rule)
    assert 0.99e-5 <= dynamic_rate(1e-4, a, "exponential") <= 1.01e-3


def test_the_rate_is_the_published_one():
    assert dynamic_rate(1.0, 0.7, "exponential") == pytest.approx(math.exp(0.7))
    assert dynamic_rate(2.0, 0.7, "linear") == pytest.approx(0.7)
    assert dynamic_rate(1.0, 0.0, "linear") == dynamic_rate(1.0, -1e-9, "linear") == 0.0
    assert dynamic_rate(1.0, 50.0, "linear") == 25.0


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
    adapter.lr = (
        1.0  # the factor of the rate can be read; `apply` is replaced, so that the network does not change
    )
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


def test_a_memory_smaller_than_the_neighbours_is_warm_when_it_is_full(ready):
    adapter = ready("dltta").adapt("dltta", neighbours=8, capacity=2, lr=1e-3)
    rates = []
    for seed in range(3):
        adapter(images(seed))
        rates.append(adapter.rate)
    assert rates[:2] == [1e-3] * 2
    assert rates[2] != 1e-3


@pytest.mark.parametrize("rule", ["exponential", "linear"])
@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_a_stream_is_answered_as_by_a_plain_loop_over_images(head, rule, ready):
    """Three neighbours of at most five images, Adam on γ and β, in double precision."""
    network, lr = ready("dltta", labels=3).network.double(), 0.05
    adapter = adapt(network, "dltta", lr=lr, neighbours=3, capacity=5, head=head, rule=rule)
    plain, memory, rates = copy.deepcopy(network).requires_grad_(False), [], []
    norms = [layer for layer in plain.modules() if isinstance(layer, nn.BatchNorm2d)]
    for layer in norms:
        layer.running_mean = layer.running_var = None  # torch then uses batch statistics
    theta = [p.requires_grad_() for layer in norms for p in (layer.weight, layer.bias)]
    adam = torch.optim.Adam(theta, lr)

    def choices(z):  # (channels, choices, …)
        return z.softmax(0)[None] if head == "softmax" else torch.stack([z.sigmoid(), (-z).sigmoid()], 1)

    for seed in range(6):
        x = images(seed, 2, size=64).double() * (1 + 0.3 * seed)
        deepest, z = plain.encode(x)[-1].detach(), plain(x)
        keys = [torch.cat([m.mean((1, 2)), F.avg_pool2d(m, m.shape[-1] // 4).flatten()]) for m in deepest]
        apart = []
        for key, own in zip(keys, F.avg_pool2d(z.detach(), 4), strict=True):
            near = sorted(memory, key=lambda row: -F.cosine_similarity(key, row[0], dim=0))[:3]
            weights = [math.exp(F.cosine_similarity(key, other, dim=0) / 0.2) for other, _ in near]
            if len(near) == 3:
                then = sum(w * y for w, (_, y) in zip(weights, near, strict=True)) / sum(weights)
                p, q = choices(own / 4), choices(then)
                apart.append(float(((p / q).log() * p + (q / p).log() * q).sum(1).mean()))
        D = sum(apart) / 2
        factor = min(math.exp(D), 10.0) if rule == "exponential" else D / 2
        rates.append(lr * factor if len(memory) >= 3 else lr)
        P = torch.stack([choices(image) for image in z])
        grads = torch.autograd.grad(-(P * P.log()).sum(2).mean(), theta)
        adam.param_groups[0]["lr"] = rates[-1]
        for parameter, grad in zip(theta, grads, strict=True):
            parameter.grad = grad
        adam.step()
        answer = plain(x).detach()
        memory = [*memory, *zip(keys, F.avg_pool2d(answer, 4), strict=True)][-5:]
        assert torch.allclose(adapter(x), answer, rtol=0, atol=1e-9)
        assert adapter.rate == pytest.approx(rates[-1], abs=1e-11)
    assert len(set(rates)) == 5  # the first two batches have the plain rate


def test_a_batch_that_is_not_finite_is_not_remembered(ready):
    adapter, twin = (ready("dltta").adapt("dltta", neighbours=2, lr=1e-3) for _ in range(2))
    adapter(images(0, 2))
    adapter(images(1, 2) * math.nan)
    twin(images(0, 2))
    assert len(adapter.memory) == 2
    assert torch.equal(adapter(images(2, 2)), twin(images(2, 2)))
    assert adapter.rate == twin.rate != 1e-3


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_the_discrepancy_is_the_symmetric_kl(head):
    z, y = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.randn(2, 3, 4, 4, dtype=torch.float64)
    p, q = losses.probabilities(z / 4, head), losses.probabilities(y, head)
    both = (p - q) * (p.log() - q.log())
    if head == "sigmoid":
        both = (both + (q - p) * ((1 - p).log() - (1 - q).log())) / 3
    assert torch.allclose(discrepancy(z, y, 4.0, head), both.sum(1).mean())
    assert discrepancy(z, z, 1.0, head).item() == pytest.approx(0, abs=1e-12)


def test_it_needs_a_network_in_two_halves(ready):
    with pytest.raises(UserError, match="no encode and decode"):
        adapt(ready("tent").network, "dltta")
