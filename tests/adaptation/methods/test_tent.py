"""TENT's update against a direct computation, and the losses in `adaptation/losses.py`."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ttdg.adaptation import adapt
from ttdg.adaptation.losses import (
    binary_entropy,
    entropy,
    foreground,
    half_entropy,
    hard_label_cross_entropy,
    max_entropy,
    mixture,
    probabilities,
    soft_cross_entropy,
)
from ttdg.adaptation.methods.domain_adaptor import gem
from ttdg.errors import UserError

adapt = partial(adapt, activation="softmax")


def test_one_step_is_adam_on_the_entropy_of_batch_normalised_logits():
    torch.manual_seed(0)
    conv, norm, head = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1)
    x, lr = torch.randn(2, 3, 8, 8), 1e-2
    adapter = adapt(nn.Sequential(conv, norm, head), "tent", lr=lr)
    adapter(x)

    gamma, beta = (p.detach().clone().requires_grad_() for p in (norm.weight, norm.bias))
    h = conv(x).detach()
    h = (h - h.mean((0, 2, 3), keepdim=True)) / (
        h.var((0, 2, 3), correction=0, keepdim=True) + norm.eps
    ).sqrt()
    p = head(h * gamma[:, None, None] + beta[:, None, None]).softmax(1)
    grads = torch.autograd.grad(-(p * p.log()).sum(1).mean(), (gamma, beta))
    for moved, start, grad in zip(adapter.parameters, (gamma, beta), grads, strict=True):
        step = lr * grad / (grad.abs() + 1e-8)  # Adam's first step: both moments are the gradient's
        assert torch.allclose(moved, start - step, atol=1e-5)


@pytest.mark.parametrize("predict", ["before", "after"])
def test_the_answer_is_from_before_or_after_the_update(predict):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    x = torch.randn(2, 3, 8, 8)
    answer = adapt(network, "tent", lr=0.1, predict=predict)(x)
    norm = adapt(network, "norm")(x)
    assert torch.allclose(answer, norm, atol=1e-6) is (predict == "before")


FORMS = {
    ("full", "softmax"): lambda z: torch.distributions.Categorical(logits=z.movedim(1, -1)).entropy().mean(),
    ("full", "sigmoid"): lambda z: torch.distributions.Bernoulli(logits=z).entropy().mean(),
    ("half", "sigmoid"): lambda z: -(z.sigmoid() * z.sigmoid().log()).mean(),
    ("hard", "softmax"): lambda z: -z.softmax(1).amax(1).log().mean(),
    ("hard", "sigmoid"): lambda z: -torch.maximum(z.sigmoid(), 1 - z.sigmoid()).log().mean(),
}


@pytest.mark.parametrize(("form", "head"), FORMS)
def test_the_objective_is_the_form_of_entropy_that_was_asked_for(form, head):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1)).double()
    x, lr = torch.randn(2, 3, 8, 8).double(), 1e-2
    adapter, plain = adapt(network, "tent", lr=lr, entropy_form=form, head=head), network.train()
    adapter(x)
    loss = FORMS[form, head](plain(x))
    assert torch.allclose(adapter.loss, loss)
    for moved, start, grad in zip(
        adapter.parameters,
        plain[1].parameters(),
        torch.autograd.grad(loss, plain[1].parameters()),
        strict=True,
    ):
        assert torch.allclose(moved, start - lr * grad / (grad.abs() + 1e-8))


def test_the_half_entropy_needs_a_sigmoid_head():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    with pytest.raises(UserError, match='use head="sigmoid"'):
        adapt(network, "tent", entropy_form="half")
    p = torch.sigmoid(torch.tensor([[-1.0]]))
    assert torch.allclose(half_entropy(torch.tensor([[-1.0]])), -p * p.log())


@pytest.mark.parametrize(
    "of",
    [
        entropy, hard_label_cross_entropy, probabilities, foreground,
        lambda z, head: soft_cross_entropy(z, z, head),
        lambda z, head: mixture(z[None], head),
        lambda z, head: max_entropy(z.shape[1], head),
        lambda z, head: gem(z, "gem-t", head),
        lambda z, head: gem(z, "entropy", head),
    ],
)  # fmt: skip
def test_one_channel_has_no_softmax(of):
    with pytest.raises(UserError, match=r'one output channel, .* use head="sigmoid"'):
        of(torch.randn(2, 1, 4, 4), "softmax")
    of(torch.randn(2, 1, 4, 4), "sigmoid")
    of(torch.randn(2, 2, 4, 4), "softmax")


@pytest.mark.parametrize("method", ["tent", "sar", "domainadaptor", "grata"])
def test_a_network_without_gamma_and_beta_is_refused(method):
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False), nn.Conv2d(4, 2, 1))
    with pytest.raises(UserError, match="affine=False has no γ and β"):
        adapt(network, method)


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=5))
@settings(max_examples=25, deadline=None)
def test_entropy_lies_between_zero_and_that_of_a_uniform_prediction(values):
    logits = torch.tensor([values], dtype=torch.float64)
    assert 0 <= entropy(logits).item() <= max_entropy(len(values), "softmax") + 1e-12
    assert 0 <= entropy(logits, "sigmoid").item() <= max_entropy(1, "sigmoid") + 1e-12


def test_entropy_agrees_with_torch_distributions():
    logits = torch.randn(7, 4, dtype=torch.float64)
    assert torch.allclose(entropy(logits), torch.distributions.Categorical(logits=logits).entropy())
    assert torch.allclose(binary_entropy(logits), torch.distributions.Bernoulli(logits=logits).entropy())


def test_entropy_of_saturated_logits_is_zero_with_a_finite_gradient():
    logits = torch.tensor([[300.0, -300.0]], requires_grad=True)
    for head in ("softmax", "sigmoid"):
        value = entropy(logits, head).sum()
        (grad,) = torch.autograd.grad(value, logits)
        assert value.item() == pytest.approx(0, abs=1e-6)
        assert math.isfinite(grad.abs().sum().item())


def test_hard_pseudo_labels_are_cross_entropy_to_the_likeliest_label():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, generator=generator)
    expected = torch.nn.functional.cross_entropy(logits, logits.argmax(1), reduction="none")
    assert torch.allclose(hard_label_cross_entropy(logits), expected)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, (logits > 0).float(), reduction="none"
    )
    assert torch.allclose(hard_label_cross_entropy(logits, "sigmoid"), expected.mean(1))
