import math
from functools import cache, partial

import pytest
import torch
from torch import nn

from ttdg.adaptation import adapt, losses
from ttdg.adaptation.adapter import GradientAdapter
from ttdg.adaptation.methods.sar import adapted_parameters, ascend, masked_mean
from ttdg.checkpoints import load
from ttdg.data import normalise
from ttdg.data.synthetic.cases import draw_site
from ttdg.networks import batchnorm

OPEN = {"margin": math.inf, "recover": -math.inf}


def a_network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1))


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_without_ascent_and_thresholds_sar_is_tent_with_sgd(head):
    ours = adapt(a_network(), "sar", activation="softmax", rho=0.0, lr=0.1, head=head, **OPEN)
    network = a_network()
    batchnorm.use(network, batchnorm.BATCH)
    tent = GradientAdapter(
        network, lambda z: losses.entropy(z, head).mean(), batchnorm.affine_parameters(network),
        lr=0.1, optimiser=partial(torch.optim.SGD, momentum=0.9),
    )  # fmt: skip
    for _ in range(5):
        assert torch.allclose(ours(X), tent(X), atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours.parameters, tent.parameters, strict=True))


def test_one_step_is_sgd_on_the_entropy_of_sure_pixels_at_the_ascended_point():
    network, lr, rho, margin = a_network(), 0.5, 1.5, 0.9
    adapter = adapt(network, "sar", activation="softmax", lr=lr, rho=rho, margin=margin, recover=-math.inf)
    adapter(X)

    conv, norm, head = network
    h = conv(X).detach()
    h = (h - h.mean((0, 2, 3), keepdim=True)) / (
        h.var((0, 2, 3), correction=0, keepdim=True) + norm.eps
    ).sqrt()

    def entropies(gamma, beta):
        p = head(h * gamma[:, None, None] + beta[:, None, None]).softmax(1)
        return -(p * p.log()).sum(1)

    theta = [p.detach().clone().requires_grad_() for p in (norm.weight, norm.bias)]
    H, limit = entropies(*theta), margin * math.log(3)
    sure = limit > H
    assert 0 < sure.sum() < sure.numel()
    g = torch.autograd.grad(H[sure].mean(), theta)
    length = torch.cat([x.flatten() for x in g]).norm()
    up = [(t + rho * x / length).detach().requires_grad_() for t, x in zip(theta, g, strict=True)]
    H = entropies(*up)
    assert (~sure & (limit > H)).any(), "a pixel that is sure only after the ascent must not count"
    assert (sure & ~(limit > H)).any(), "nor a pixel that is no longer sure"
    g = torch.autograd.grad(H[sure & (limit > H)].mean(), up)
    for moved, start, gradient in zip(adapter.parameters, theta, g, strict=True):
        assert torch.allclose(moved, start - lr * gradient, atol=1e-5)


def test_the_ascent_has_length_rho_over_all_parameters_together():
    parameters = [nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(2))]
    ascend(parameters, [torch.randn(4), torch.randn(2)], 0.05)
    assert torch.cat([p.detach() for p in parameters]).norm().item() == pytest.approx(0.05, rel=1e-5)


def test_unsure_pixels_give_no_gradient():
    H = torch.tensor([0.1, 0.5, 0.3], requires_grad=True)
    masked_mean(H, H < 0.4).backward()
    assert torch.equal(H.grad, torch.tensor([0.5, 0.0, 0.5]))


def test_a_batch_without_a_sure_pixel_changes_nothing():
    network = a_network()
    adapter = adapt(network, "sar", activation="softmax", margin=0.0)
    adapter(X)
    assert adapter.counts == {"steps": 0, "resets": 0, "skipped": 1}
    assert all(torch.equal(v, network.state_dict()[k]) for k, v in adapter.network.state_dict().items())


def test_a_collapse_triggers_exactly_one_recovery_to_the_source():
    network = a_network()
    adapter = adapt(network, "sar", activation="softmax", margin=math.inf, lr=1e-6)
    adapter(X)
    with torch.no_grad():
        for parameter in adapter.parameters:
            parameter.mul_(1e4)  # one-hot predictions
    calls = 0
    while not adapter.counts["resets"]:
        adapter(X)
        calls += 1
        assert calls < 100
    assert calls > 5, "the average loss falls by a tenth at each step"
    assert adapter.ema is None
    assert not adapter.optimiser.state or all(
        not value.any() for state in adapter.optimiser.state.values() for value in state.values()
    )
    assert all(torch.equal(v, network.state_dict()[k]) for k, v in adapter.network.state_dict().items())
    for _ in range(calls):
        adapter(X)
    assert adapter.counts == {"steps": 2 * calls + 1, "resets": 1, "skipped": 0}


@cache
def demo_model():
    return load("demo", "cpu")


@pytest.mark.parametrize("site", ["valley", "summit"])  # a source site of the demo model, and a new one
def test_a_healthy_stream_never_recovers(site):
    """With a threshold above the loss, SAR would reset at every step and equal PTBN."""
    model = demo_model()
    pictures, _ = draw_site("fundus", site, 12, model.card.benchmark.size, seed=7)
    light = torch.tensor(pictures).movedim(-1, 1) / 255
    images = normalise(light, model.card.benchmark.normalisation).split(4)
    adapter = adapt(model, "sar", lr=1e-2)
    norm = adapt(model, "norm")
    last = [a(batch) for batch in images for a in (adapter, norm)][-2:]
    assert adapter.counts == {"steps": len(images), "resets": 0, "skipped": 0}
    assert adapter.ema < adapter.recover * math.log(3), "the published threshold, rescaled, would recover"
    assert not torch.allclose(*last, atol=1e-3)


def test_the_running_loss_is_an_average_with_memory_and_a_new_site_begins_anew():
    adapter, other = (adapt(a_network(), "sar", activation="softmax", margin=math.inf) for _ in range(2))
    adapter(X)
    first = adapter.ema
    adapter(3 * X)
    second = adapter.loss.item()
    assert adapter.ema == pytest.approx(0.9 * first + 0.1 * second, rel=1e-5)
    adapter.reset()
    assert torch.equal(adapter(X), other(X))
    assert (adapter.ema, adapter.first) == (first, first)


def test_the_thresholds_are_the_declared_shares():
    adapter = adapt(a_network(), "sar", activation="softmax")
    H = torch.tensor([0.39, 0.41]) * math.log(3)
    assert adapter.sure(H, 3).tolist() == [True, False]
    assert adapter.recover == pytest.approx(0.02895, abs=1e-5)


def test_the_last_stage_of_a_resnet_stays_as_it_is():
    network = nn.ModuleDict(
        {"layer3": nn.BatchNorm2d(2), "layer4": nn.BatchNorm2d(2), "decoder": nn.BatchNorm2d(2)}
    )
    kept = {id(p) for p in network["layer4"].parameters()}
    assert len(adapted_parameters(network)) == 4
    assert not kept & {id(p) for p in adapted_parameters(network)}
