"""Losses on BatchNorm statistics: gradients computed for all layers together equal those of autograd."""

import importlib.util
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ttdg.adaptation.methods.vptta import misfit
from ttdg.networks import batchnorm
from ttdg.networks.batchnorm import batched, grouped
from ttdg.networks.batchnorm.alignment import VARIANCE_WEIGHT, AlignmentMode
from ttdg.networks.batchnorm.batched import (
    BatchedMixMode,
    SourceAndMixMode,
    StatisticsCopies,
    channel_weights_and_counts,
    concat_channels,
    loss_with_linear_gradient,
)
from ttdg.networks.batchnorm.custom_grad import loss_with_fused_gradient

SHAPES = ((3, 5, 4, 6), (3, 2, 8, 8), (3, 7, 9))  # the last has one spatial dimension


def inputs_of(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(*shape, generator=generator, dtype=torch.float64) * 2 + 1).requires_grad_()
        for shape in SHAPES
    ]


def some_statistics(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(c, generator=generator).double(), torch.rand(c, generator=generator).double() * 4)
        for _, c, *_ in SHAPES
    ]


@given(st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_the_misfit_of_vptta_and_its_gradient_are_those_of_autograd(seed):
    inputs, statistics = inputs_of(seed), some_statistics(seed)
    layers = []
    for x, (mean, var) in zip(inputs, statistics, strict=True):
        own_std, own_mean = torch.std_mean(x, tuple(range(2, x.ndim)))
        layers.append((mean - own_mean).abs().mean(1) + (var.sqrt() - own_std).abs().mean(1))
    expected = torch.stack(layers).mean(0).sum()
    ours = loss_with_linear_gradient(*misfit(inputs, *zip(*statistics, strict=True)), inputs)
    assert torch.allclose(ours, expected)
    pairs = zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(expected, inputs), strict=True)
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in pairs)


@given(st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_the_misfit_of_pass_and_its_gradient_are_those_of_autograd(seed):
    torch.manual_seed(seed)
    network = nn.ModuleList([nn.BatchNorm2d(5), nn.BatchNorm2d(2, eps=1e-3)]).double()
    inputs = inputs_of(seed)[:2]
    for layer in network:
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    expected = 0
    for layer, x in zip(network, inputs, strict=True):
        var, mean = torch.var_mean(x, (0, 2, 3))
        distances = (mean - layer.running_mean).abs().mean(), (var - layer.running_var).abs().mean()
        expected = expected + distances[0] + VARIANCE_WEIGHT * distances[1]
    mode = AlignmentMode(network)
    mode.collected = []
    for layer, x in zip(network, inputs, strict=True):
        mode(layer, x)
    ours = mode.misfit()
    assert torch.allclose(ours, expected)
    pairs = zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(expected, inputs), strict=True)
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in pairs)


def test_collecting_inputs_changes_neither_the_output_nor_the_running_statistics():
    torch.manual_seed(0)
    layer, x = nn.BatchNorm2d(5), torch.randn(3, 5, 4, 6)
    mode, start = AlignmentMode(layer), [b.clone() for b in batchnorm.running_statistics(layer)]
    plain = batchnorm.TRAIN(layer, x), *[b.clone() for b in batchnorm.running_statistics(layer)]
    for buffer, value in zip(batchnorm.running_statistics(layer), start, strict=True):
        buffer.copy_(value)
    mode.collected = []
    watched = mode(layer, x), *batchnorm.running_statistics(layer)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(watched, plain, strict=True))
    assert not torch.equal(watched[1], start[0])


def test_the_gradient_of_a_constant_map_comes_from_its_mean_only():
    x = torch.full((2, 3, 4, 4), 5.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        loss_with_linear_gradient(*misfit([x], [torch.zeros(3)], [torch.ones(3)]), [x]), x
    )
    assert torch.allclose(gradient, torch.full_like(x, 1 / 3 / 16))


def test_channel_weights_and_counts_are_those_of_each_layer():
    share, values = channel_weights_and_counts([torch.zeros(3, 2, 4, 4), torch.zeros(3, 1, 5)], 3)
    assert share.tolist() == [0.5, 0.5, 1.0]
    assert values.tolist() == [48, 48, 15]
    assert concat_channels([torch.zeros(3, 2), torch.zeros(3, 1)]).shape == (3, 3)


def test_the_linear_gradient_is_the_given_one_and_scales_with_the_loss():
    x, a, c = torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 3), torch.randn(2, 3)
    (gradient,) = torch.autograd.grad(7 * loss_with_linear_gradient(torch.tensor(1.5), a, c, [x]), x)
    assert torch.allclose(gradient, 7 * (a[..., None] * x + c[..., None]), atol=1e-6)


@pytest.mark.parametrize("refreshed", [True, False])
def test_modifying_a_copy_leaves_the_source_statistics_unchanged(refreshed):
    network = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(2))
    copies = StatisticsCopies(network)
    for _ in range(2):  # a layer may run twice in a pass
        if refreshed:
            copies.refresh()
        for _ in range(2):
            mean, var = copies.take(network[0])
            assert torch.equal(mean, torch.zeros(3))
            assert torch.equal(var, torch.ones(3))
            mean.add_(1)
            var.add_(1)
    assert torch.equal(network[0].running_mean, torch.zeros(3))


def a_network() -> nn.Sequential:
    torch.manual_seed(0)
    norms = nn.BatchNorm2d(4), nn.BatchNorm2d(5, affine=False)
    for layer in norms:
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    nn.init.normal_(norms[0].weight)
    return nn.Sequential(nn.Conv2d(3, 4, 3), norms[0], nn.ReLU(), nn.Conv2d(4, 5, 3), norms[1]).eval()


def answer(mode: batchnorm.Mode, images: torch.Tensor) -> torch.Tensor:
    network = a_network()
    batchnorm.use(network, mode)
    with torch.no_grad():
        return network(images)


@pytest.mark.parametrize("size", [9, 6])  # of the smaller, the second layer has too few values to mix
def test_source_and_mixed_outputs_of_one_pass_equal_those_of_two_passes(size):
    images, network = torch.randn(3, 3, size, size) + 1, a_network()
    mode = SourceAndMixMode(network, 0.3)
    batchnorm.use(network, mode)
    for refresh in (mode.copies.refresh, mode.copies.refresh, lambda: None):
        refresh()
        with torch.no_grad():
            both = network(images.repeat_interleave(2, 0))
        assert torch.allclose(both[::2], answer(batchnorm.EVAL, images), atol=1e-5)
        assert torch.allclose(both[1::2], answer(batchnorm.MixMode(0.3), images), atol=1e-5)


def test_the_batched_mix_mode_equals_the_mix_mode_and_collects_inputs():
    images, network = torch.randn(3, 3, 9, 9) + 1, a_network()
    mode = BatchedMixMode(network, 0.3)
    batchnorm.use(network, mode)
    mode.collected = []
    for rho in (0.3, 0.8):
        mode.rho = rho
        mode.copies.refresh()
        with torch.no_grad():
            assert torch.equal(network(images), answer(batchnorm.MixMode(rho), images))
    assert [tuple(layer_input.x.shape) for layer_input, _ in mode.collected] == [
        (3, 4, 7, 7),
        (3, 5, 5, 5),
    ] * 2


def gradient_of_one_pass(dtype: torch.dtype, device: str = "cpu") -> tuple[torch.Tensor, ...]:
    """The output of a pass without gradient, the gradient of a second pass, and the mixed statistics of that pass."""
    torch.manual_seed(1)
    images = torch.randn(3, 3, 9, 9, dtype=dtype).add(1).to(device).requires_grad_()
    network, met = a_network().to(device, dtype), []
    network.insert(2, nn.ReLU(inplace=True))
    batchnorm.use(network.requires_grad_(False), mode := BatchedMixMode(network, 0.3))
    share = torch.full((1,), 0.3, dtype=dtype, device=device)
    with torch.no_grad(), mode.one_pass(share):
        answer = network(images)
    with mode.one_pass(share, met):
        network(images)
    statistics = [s for m, _ in met for s in (m.mean, m.var)]
    lines = [torch.randn(3, 9, dtype=dtype).to(device) for _ in range(2)]
    return (
        answer,
        *torch.autograd.grad(loss_with_fused_gradient(images.sum(), *lines, met), images),
        *statistics,
    )


def torch_implementation(layer: nn.Module, x: torch.Tensor) -> grouped.Normalise | None:
    """The torch implementation in place of the fused kernel, for the layers that the kernel supports."""
    return grouped._normalise if layer.affine and x.ndim == 4 else None


def test_a_pass_through_the_fused_kernel_equals_a_pass_without_it(monkeypatch):
    plain = gradient_of_one_pass(torch.float64)
    calls = []
    monkeypatch.setattr(
        batched, "fused_kernel_for", lambda *of: calls.append(of) or torch_implementation(*of)
    )
    for ours, expected in zip(gradient_of_one_pass(torch.float64), plain, strict=True):
        assert torch.allclose(ours, expected, atol=1e-12)
    assert len(calls) == 4


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None
    or not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"),
    reason="needs CUDA, or triton and TRITON_INTERPRET=1",
)
def test_the_triton_kernel_gives_the_same_pass(monkeypatch):
    from ttdg.networks.batchnorm import grouped_triton

    device, passes = "cuda" if torch.cuda.is_available() else "cpu", []
    for fused in (None, grouped_triton.grouped_batch_norm):
        monkeypatch.setattr(
            batched, "fused_kernel_for", lambda *of, fused=fused: torch_implementation(*of) and fused
        )
        passes.append(gradient_of_one_pass(torch.float32, device))
    for ours, expected in zip(*passes, strict=True):
        assert torch.allclose(ours, expected, atol=1e-4, rtol=1e-4)


def test_a_failed_pass_leaves_no_state():
    mode = BatchedMixMode(a_network(), 0.3)
    with pytest.raises(RuntimeError, match="midway"), mode.one_pass(torch.ones(1), []):
        raise RuntimeError("midway")
    assert mode.collected is None
    assert mode._share is None


def test_there_is_no_fused_kernel_for_cpu_tensors():
    assert batched.fused_kernel_for(nn.BatchNorm2d(3), torch.zeros(1, 3, 4, 4)) is None


@pytest.mark.parametrize("scale", [1.0, -3.0])
def test_the_fused_gradient_passes_through_every_layer(scale):
    """Compared with autograd; the last layer's output does not contribute to the loss."""
    network = a_network().double()
    network.insert(2, nn.ReLU(inplace=True))
    images = (torch.randn(3, 3, 9, 9, dtype=torch.float64) + 1).requires_grad_()
    inputs = []
    batchnorm.use(network, batchnorm.MixMode(0.3))
    for layer in (network[1], network[5]):
        layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    lines = [torch.randn(3, 9, dtype=torch.float64) for _ in range(2)]
    network(images)
    parts = zip(inputs, *(line.split([4, 5], 1) for line in lines), strict=True)
    expected = sum((a[..., None, None] * x.square() / 2 + c[..., None, None] * x).sum() for x, a, c in parts)
    batchnorm.use(network, mode := BatchedMixMode(network, 0.3))
    mode.collected = []
    mode.copies.refresh()
    network(images)
    ours = loss_with_fused_gradient(expected.detach(), *lines, mode.collected)
    assert torch.equal(ours, expected)
    (gradient,), (reference,) = (torch.autograd.grad(scale * loss, images) for loss in (ours, expected))
    assert torch.allclose(gradient, reference, atol=1e-9)
