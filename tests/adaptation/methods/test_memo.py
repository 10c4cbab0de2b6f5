import copy
from functools import partial

import pytest
import torch
from torch import nn

from ttdg.adaptation import adapt, losses
from ttdg.adaptation.methods import memo
from ttdg.adaptation.views import SQUARE_VIEWS, View, photometric_view
from ttdg.networks import batchnorm

adapt = partial(adapt, activation="softmax")

X = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def a_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_identical_views_make_it_plain_entropy_minimisation_on_all_weights(head, monkeypatch):
    monkeypatch.setattr(memo, "SQUARE_VIEWS", (View(),))
    monkeypatch.setattr(memo, "photometric_view", lambda images, *_: images)
    network, lr = a_network(), 0.1
    adapter = adapt(network, "memo", lr=lr, views=3, head=head)
    adapter(X)
    plain = copy.deepcopy(network).eval()
    batchnorm.use(plain, batchnorm.MixMode(1 / 17))
    grads = torch.autograd.grad(losses.entropy(plain(X), head).mean(), list(plain.parameters()))
    for moved, start, g in zip(adapter.network.parameters(), plain.parameters(), grads, strict=True):
        assert torch.allclose(moved, start - lr * g, atol=1e-5)


def test_the_marginal_is_the_mean_prediction_of_the_views():
    adapter = adapt(a_network(), "memo", views=8)
    adapter.generator.manual_seed(0)
    marginal = adapter._mean_prediction(X).softmax(1)
    generator = torch.Generator().manual_seed(0)
    seen = [X, *photometric_view(X.repeat(7, 1, 1, 1), generator).chunk(7)]
    p = [v.inverse(adapter.network(v(x)).softmax(1)) for v, x in zip(SQUARE_VIEWS, seen, strict=True)]
    assert torch.allclose(marginal, torch.stack(p).mean(0), atol=1e-6)


@pytest.mark.parametrize("x", [X, X[..., :5]], ids=["square", "oblong"])
def test_views_in_one_pass_are_each_answered_as_in_a_pass_for_itself(x):
    network = a_network()
    network[1].running_mean.normal_()
    network[1].weight.data.uniform_(0.5, 2)
    adapter = adapt(network, "memo", views=8, alpha=0.7)
    adapter.generator.manual_seed(0)
    marginal = adapter._mean_prediction(x).softmax(1)
    generator = torch.Generator().manual_seed(0)
    seen = [x, *photometric_view(x.repeat(7, 1, 1, 1), generator).chunk(7)]
    p = [v.inverse(adapter.network(v(y)).softmax(1)) for v, y in zip(SQUARE_VIEWS, seen, strict=True)]
    assert torch.allclose(marginal, torch.stack(p).mean(0), atol=1e-6)


def test_its_step_is_that_of_a_pass_for_each_view():
    network, lr = a_network(), 0.1
    adapter = adapt(network, "memo", lr=lr, alpha=0.5)
    adapter(X)
    plain = copy.deepcopy(network).eval()
    batchnorm.use(plain, batchnorm.MixMode(0.5))
    seen = [X, *photometric_view(X.repeat(7, 1, 1, 1), torch.Generator().manual_seed(0)).chunk(7)]
    p = [v.inverse(plain(v(y)).softmax(1)) for v, y in zip(SQUARE_VIEWS, seen, strict=True)]
    loss = torch.special.entr(torch.stack(p).mean(0)).sum(1).mean()
    grads = torch.autograd.grad(loss, list(plain.parameters()))
    assert max(g.abs().max() for g in grads) > 1e-3
    for moved, start, g in zip(adapter.network.parameters(), plain.parameters(), grads, strict=True):
        assert torch.allclose(moved, start - lr * g, atol=1e-5)


@pytest.mark.parametrize("noise", ["released", "strong"])
def test_its_views_have_the_noise_that_is_asked_for(noise):
    adapter = adapt(a_network(), "memo", **({} if noise == "released" else {"noise": noise}))
    adapter.generator.manual_seed(3)
    expected = photometric_view(X.repeat(7, 1, 1, 1), torch.Generator().manual_seed(3), noise)
    assert torch.equal(torch.cat(adapter._photometric_variants(X)[1:]), expected)


def test_each_batch_begins_anew():
    adapter = adapt(a_network(), "memo", lr=1.0)
    first = adapter(X)
    adapter(X + 1)
    assert torch.equal(adapter(X), first)
