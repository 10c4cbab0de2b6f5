"""TENT's update against a dozen lines that know nothing of our classes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ttdg.adapt import adapt
from ttdg.adapt.entropy import binary_entropy, entropy, half_entropy, largest, surprise_of_likeliest


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


def test_the_half_entropy_of_published_ports_is_available_by_name():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    assert (
        adapt(network, "tent", head="sigmoid", entropy_form="half")(torch.randn(2, 3, 8, 8)).isfinite().all()
    )
    p = torch.sigmoid(torch.tensor([[-1.0]]))
    assert torch.allclose(half_entropy(torch.tensor([[-1.0]])), -p * p.log())


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=5))
@settings(max_examples=50, deadline=None)
def test_entropy_lies_between_zero_and_that_of_a_uniform_prediction(values):
    logits = torch.tensor([values], dtype=torch.float64)
    assert 0 <= entropy(logits).item() <= largest(len(values), "softmax") + 1e-12
    assert 0 <= entropy(logits, "sigmoid").item() <= largest(1, "sigmoid") + 1e-12


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
    assert torch.allclose(surprise_of_likeliest(logits), expected)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, (logits > 0).float(), reduction="none"
    )
    assert torch.allclose(surprise_of_likeliest(logits, "sigmoid"), expected.mean(1))
