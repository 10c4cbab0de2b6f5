import copy
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ttdg.adaptation import adapt, defaults, losses
from ttdg.adaptation.methods.domain_adaptor import gem
from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.adamix import ADAMIX, FoldingMode, StatisticsTable, batch_weight, source_table

adapt = partial(adapt, activation="softmax")

Pair = tuple[torch.Tensor, torch.Tensor] | torch.Tensor


def a_layer(seed: int = 0) -> nn.BatchNorm2d:
    torch.manual_seed(seed)
    layer = nn.BatchNorm2d(5).double()
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer


def moded(layer: nn.BatchNorm2d, mode: batchnorm.Mode) -> nn.BatchNorm2d:
    layer = copy.deepcopy(layer)
    batchnorm.use(layer, mode)
    return layer


def some(b: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(b, 5, 6, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3 + 1


def folding(layer: nn.BatchNorm2d, images: int) -> tuple[nn.BatchNorm2d, FoldingMode]:
    """A copy of the layer at the start of a pass."""
    layer = copy.deepcopy(layer)
    mode = FoldingMode(layer)
    batchnorm.use(layer, mode)
    mode.start(images)
    return layer, mode


@given(st.integers(1, 5), st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_the_folded_layer_is_the_mixed_one_before_and_after_it_is_folded(b, seed):
    x = some(b, seed)
    (layer, mode), expected = folding(a_layer(seed), b), moded(a_layer(seed), ADAMIX)(x)
    assert torch.allclose(layer(x), expected, atol=1e-12)
    assert torch.equal(layer.weight, a_layer(seed).weight)
    mode.fold()
    assert torch.allclose(layer(x), expected, atol=1e-6, rtol=0)
    assert torch.allclose(layer(x), moded(layer, batchnorm.BATCH)(x), atol=1e-12)


@pytest.mark.parametrize("b", [1, 3])
def test_the_gradient_of_the_folding_pass_is_that_of_the_folded_layer(b):
    x, (layer, mode) = some(b).requires_grad_(), folding(a_layer(), b)
    loss = layer(x).pow(3).sum()
    mode.fold()
    asked = [x, layer.weight, layer.bias]
    ours, expected = (torch.autograd.grad(y, asked) for y in (loss, layer(x).pow(3).sum()))
    assert all(torch.allclose(g, h, rtol=1e-6) for g, h in zip(ours, expected, strict=True))


def test_a_second_start_forgets_the_first_batch_even_one_that_is_not_finite():
    (layer, mode), start = folding(a_layer(), 2), a_layer().state_dict()
    layer(some(2) * torch.nan)
    mode.fold()
    layer.load_state_dict(start)
    mode.start(2)
    assert torch.allclose(layer(some(2)), moded(a_layer(), ADAMIX)(some(2)), atol=1e-12)


def test_layers_without_affine_or_with_a_second_input_are_mixed_and_not_folded():
    plain, x = nn.BatchNorm2d(5, affine=False).double(), some(3)
    network = nn.ModuleList([a_layer(), plain])
    mode = FoldingMode(network)
    batchnorm.use(network, mode)
    mode.start(3)
    network[0](x)
    assert torch.allclose(network[0](x + 1), moded(a_layer(), ADAMIX)(x + 1), atol=1e-12)
    mode.fold()
    assert torch.allclose(network[1](x), moded(plain, ADAMIX)(x), atol=1e-12)


@pytest.mark.parametrize(
    ("side", "same"), [(6, ADAMIX), (1, batchnorm.EVAL)], ids=["mixed", "too few values"]
)
def test_a_second_input_of_a_layer_has_the_gradient_for_the_parameters_it_met(side, same):
    x, (layer, mode), alone = some(3), folding(a_layer(), 3), moded(a_layer(), same)
    y = some(3, seed=1)[..., :side, :side].clone().requires_grad_()
    first, second = layer(x).pow(3).sum(), layer(y).pow(3).sum()
    expected = torch.autograd.grad(alone(y).pow(3).sum(), [y, alone.weight, alone.bias])
    mode.fold()
    assert not torch.equal(layer.weight, alone.weight)
    ours = torch.autograd.grad(second, [y, layer.weight, layer.bias])
    assert all(torch.allclose(g, h) for g, h in zip(ours, expected, strict=True))
    assert torch.autograd.grad(first, layer.weight)[0].abs().min() > 0


class Twice(nn.Module):
    """A network that uses one BatchNorm layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(self.norm(self.conv(x)).relu())))


def test_a_network_that_uses_a_layer_twice_is_adapted():
    adapter = adapt(Twice(), "domainadaptor", steps=2, lr=0.1)
    still = adapt(adapter.network, "domainadaptor", lr=0.0)
    x = torch.randn(2, 3, 8, 8)
    assert (adapter(x) - still(x)).abs().max() > 1e-4


def test_images_of_one_pixel_have_no_deviation():
    x, layer = torch.randn(16, 5, 1, 1, dtype=torch.float64), a_layer()
    rows = torch.zeros(2, 18, 5, dtype=torch.float64)
    rows[0] = torch.cat([x.flatten(1), x.mean((0, 2, 3))[None], layer.running_mean[None]])
    rows[1, 16:] = torch.stack([x.std((0, 2, 3)), layer.running_var.sqrt()])
    alpha = source_weight(rows[:, :16], rows[:, 16], rows[:, 17])
    mean = alpha * layer.running_mean + (1 - alpha) * x.mean((0, 2, 3))
    var = alpha * layer.running_var + (1 - alpha) * x.var((0, 2, 3))
    expected = torch.nn.functional.batch_norm(x, mean, var, layer.weight, layer.bias, eps=layer.eps)
    assert torch.allclose(moded(layer, ADAMIX)(x), expected, atol=1e-9)


def source_weight(own: Pair, batch: Pair, source: Pair) -> torch.Tensor:
    """α, given means and deviations of images, batch and source."""
    layer = nn.BatchNorm2d(len(source[0]))
    rows = StatisticsTable(source_table(layer, len(own[0])).to(own[0].dtype))
    for plane, kinds in zip(rows.table[1:3], zip(own, batch, source, strict=True), strict=True):
        plane.copy_(torch.cat([kind.reshape(-1, plane.shape[1]) for kind in kinds]))
    return 1 - batch_weight(*rows.pairs)


def alpha_by_hand(layer: nn.BatchNorm2d, x: torch.Tensor) -> torch.Tensor:
    """α by the published formula."""
    mean, std = x.mean((0, 2, 3)), x.var((0, 2, 3)).sqrt()
    source = layer.running_mean, layer.running_var.sqrt()
    d_st = ((mean - source[0]) ** 2).mean() + ((std - source[1]) ** 2).mean()
    alphas = []
    for image in x:
        m, s = image.mean((1, 2)), image.std((1, 2))
        d_it = ((m - mean) ** 2).mean() + ((s - std) ** 2).mean()
        d_is = ((m - source[0]) ** 2).mean() + ((s - source[1]) ** 2).mean()
        alphas.append((1 - d_st / (d_st + d_is + d_it)).clamp(0, 1))
    return torch.stack(alphas).mean()


@pytest.mark.parametrize("b", [1, 4])
def test_the_mixture_is_the_published_one(b):
    layer, x = a_layer(), some(b)
    alpha = alpha_by_hand(layer, x)
    mean = alpha * layer.running_mean + (1 - alpha) * x.mean((0, 2, 3))
    var = alpha * layer.running_var + (1 - alpha) * x.var((0, 2, 3))
    expected = torch.nn.functional.batch_norm(x, mean, var, layer.weight, layer.bias, eps=layer.eps)
    assert torch.allclose(moded(layer, ADAMIX)(x), expected, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_one_image_weighs_source_and_batch_exactly_alike(seed):
    generator = torch.Generator().manual_seed(seed)
    own = tuple(torch.rand(1, 7, generator=generator) for _ in range(2))
    source = tuple(torch.rand(7, generator=generator) for _ in range(2))
    assert source_weight(own, (own[0][0], own[1][0]), source).item() == 0.5


@given(st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_the_sources_weight_lies_between_zero_and_one(b, seed):
    generator = torch.Generator().manual_seed(seed)
    own, batch, source = (
        tuple(torch.randn(*shape, generator=generator) for _ in range(2)) for shape in ((b, 3), (3,), (3,))
    )
    assert 0 <= source_weight(own, batch, source).item() <= 1


def test_a_batch_like_the_source_is_left_to_the_source():
    same = torch.randn(3), torch.rand(3)
    assert source_weight((same[0][None], same[1][None]), same, same).item() == 1


def gem_in_numpy(z: np.ndarray) -> tuple[float, float]:
    """GEM-T of samples (n, classes) with the authors' product of shapes (n,) and (n, 1), and sample by sample."""
    z = z - z.mean(1, keepdims=True)
    T = 2 * z.std(1, keepdims=True, ddof=1)
    p = np.exp(z / T) / np.exp(z / T).sum(1, keepdims=True)
    H = -(p * np.log(p)).sum(1)
    product = H * T**2
    assert product.shape == (len(z), len(z))
    return float(product.mean()), float((H * T[:, 0] ** 2).mean())


def test_gem_has_the_value_of_the_authors_broadcast_by_default_and_that_of_each_sample_by_name():
    """All temperatures of these logits are inside the interval to which they are clipped."""
    generator = torch.Generator().manual_seed(2)
    logits = 1.5 * torch.randn(3, 4, 6, 6, dtype=torch.float64, generator=generator).square()
    released, by_sample = gem_in_numpy(logits.movedim(1, -1).flatten(0, 2).numpy())
    assert abs(released - by_sample) > 0.1
    assert gem(logits, "gem-t", "softmax").item() == pytest.approx(released)
    assert gem(logits, "gem-t", "softmax", "sample").item() == pytest.approx(by_sample)
    assert defaults("domainadaptor")["weighting"] == "released"


def test_sure_pixels_have_the_smaller_gradient_by_default_and_the_larger_one_by_sample():
    """Two pixels with the same direction of logits, one of them five times as long: the gradients are as 1/T or T."""
    z = (
        torch.tensor([[1.0, -1.0, 0.5], [5.0, -5.0, 2.5]], dtype=torch.float64)
        .T[None, :, None]
        .requires_grad_()
    )
    for weighting, ratio in (("released", 1 / 5), ("sample", 5)):
        (gradient,) = torch.autograd.grad(gem(z, "gem-t", "softmax", weighting), z)
        unsure, sure = gradient[0, :, 0].norm(dim=0)
        assert (sure / unsure).item() == pytest.approx(ratio)


@pytest.mark.parametrize("weighting", ["released", "sample"])
def test_one_step_is_sgd_on_gem_from_the_rectified_parameters(weighting):
    torch.manual_seed(0)
    conv, norm, head = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1)
    x, lr = torch.randn(2, 3, 8, 8), 0.1
    adapter = adapt(nn.Sequential(conv, norm, head), "domainadaptor", lr=lr, weighting=weighting)
    answer = adapter(x)

    h = conv(x).detach()
    alpha = alpha_by_hand(norm, h)
    mean, var, biased = h.mean((0, 2, 3)), h.var((0, 2, 3)), h.var((0, 2, 3), correction=0)
    mixed = alpha * norm.running_var + (1 - alpha) * var
    gamma = norm.weight * (biased + norm.eps).sqrt() / (mixed + norm.eps).sqrt()
    beta = norm.bias + alpha * (mean - norm.running_mean) / (biased + norm.eps).sqrt() * gamma
    theta = [t.detach().clone().requires_grad_() for t in (gamma, beta)]
    h = (h - mean[:, None, None]) / (biased + norm.eps).sqrt()[:, None, None]
    z = head(h * theta[0][:, None, None] + theta[1][:, None, None])
    z = z - z.mean(1, keepdim=True).detach()
    T = (2 * z.std(1, keepdim=True)).detach().clamp(min=0.1)
    p = (z / T).softmax(1)
    H = -(p * p.log()).sum(1)
    loss = H.mean() * (T**2).mean() if weighting == "released" else (H * T[:, 0] ** 2).mean()
    grads = torch.autograd.grad(loss, theta)
    stepped = [t.detach() - lr * g for t, g in zip(theta, grads, strict=True)]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(adapter.parameters, stepped, strict=True))
    assert torch.allclose(answer, head(h * stepped[0][:, None, None] + stepped[1][:, None, None]), atol=1e-5)


@pytest.mark.parametrize("images", [1, 3])
def test_a_batch_with_the_sources_statistics_is_answered_as_by_the_source(images):
    """For one image all three distances are 0."""
    torch.manual_seed(0)
    conv, norm, x = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), torch.randn(images, 3, 4, 4)
    torch.batch_norm_update_stats(conv(x).detach(), norm.running_mean, norm.running_var, 1.0)
    network = nn.Sequential(conv, norm, nn.Conv2d(4, 2, 1)).eval()
    answer = adapt(network, "domainadaptor", lr=0.0)(x)
    assert torch.allclose(answer, network(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("weighting", ["released", "sample"])
@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_its_own_step_lowers_gem_at_the_temperature_it_was_taken_at(head, weighting):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1))
    x = torch.randn(2, 3, 8, 8)
    before, after = (
        adapt(network, "domainadaptor", lr=lr, head=head, weighting=weighting)(x) for lr in (0.0, 0.01)
    )
    pairs = [z if head == "softmax" else torch.stack([z, -z], 1) / 2 for z in (before, after)]
    T = 2 * pairs[0].std(1, keepdim=True)
    squares = (T**2).mean() if weighting == "released" else T**2
    start, end = ((squares * torch.special.entr((z / T).softmax(1))).sum(1).mean() for z in pairs)
    assert end < start - 1e-5


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_the_plain_prediction_is_a_fixed_target_of_the_softened_one(head):
    """The gradient of −T²·Σ q log p_T is T·(p_T − q) if q has no gradient, and mean(T²)/T·(p_T − q) with mean(T²)."""
    z = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    samples = 32 if head == "softmax" else 96
    gradient, by_sample = (
        samples * torch.autograd.grad(gem(z, "gem-skd", head, weighting), z)[0]
        for weighting in ("released", "sample")
    )
    T = 2 * z.std(1, keepdim=True) if head == "softmax" else 2**0.5 * z.abs()
    T = T.clamp(0.1, 20)
    expected = losses.probabilities(z / T, head) - losses.probabilities(z, head)
    assert torch.allclose(by_sample, T * expected)
    assert torch.allclose(gradient, (T**2).mean() / T * expected)


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_gem_at_temperature_one_is_the_entropy(head, monkeypatch):
    from ttdg.adaptation.methods import domain_adaptor

    monkeypatch.setattr(domain_adaptor, "TEMPERATURES", (1.0, 1.0))
    logits = torch.randn(2, 3, 4, 4)
    ours = gem(logits, "gem-t", head)
    assert torch.allclose(ours, losses.entropy(logits, head).mean(), atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "weighting"), [("gem-t", "released"), ("gem-t", "sample"), ("gem-skd", "sample")]
)
@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_a_step_down_gem_makes_predictions_surer(loss, weighting, head):
    logits = torch.randn(2, 3, 4, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(gem(logits, loss, head, weighting), logits)
    before, after = (losses.entropy(z, head).mean() for z in (logits, logits - 1e-2 * gradient))
    assert after < before
    flat = gem(torch.zeros(1, 2, 3, 3, requires_grad=True), loss, head, weighting)
    assert flat.isfinite().all()
