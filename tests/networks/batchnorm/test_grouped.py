"""BatchNorm over groups: the torch implementation against `MixMode`, and the Triton kernel against the former.

The Triton kernel runs on CUDA, or on any device with TRITON_INTERPRET=1.
"""

import importlib.util
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ttdg.networks import batchnorm
from ttdg.networks.batchnorm import grouped
from ttdg.networks.batchnorm.grouped import LEARNED, GroupedMode, GroupStatistics, statistics_distance

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None
    or (DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"),
    reason="needs CUDA, or triton and TRITON_INTERPRET=1",
)


def a_layer(c: int) -> nn.BatchNorm2d:
    draw = torch.Generator().manual_seed(c)
    layer = nn.BatchNorm2d(c).eval()
    for tensor in (layer.running_mean, layer.weight.data, layer.bias.data):
        tensor.copy_(torch.randn(c, generator=draw))
    layer.running_var.copy_(torch.rand(c, generator=draw) + 0.1)
    return layer.requires_grad_(False).to(DEVICE)


def a_stack(k: int, b: int, c: int, h: int, w: int) -> Tensor:
    draw = torch.Generator().manual_seed(k + b + c)
    return (3 * torch.randn(k * b, c, h, w, generator=draw) + torch.randn(c, 1, 1, generator=draw)).to(DEVICE)


@given(k=st.integers(1, 3), b=st.integers(1, 3), c=st.integers(1, 5), rho=st.floats(0, 1))
def test_every_group_is_normalised_as_if_it_were_alone(k, b, c, rho):
    layer, x = a_layer(c), a_stack(k, b, c, 5, 7)
    y = GroupedMode(torch.full((k,), rho, device=DEVICE))(layer, x)
    for mine, group in zip(y.chunk(k), x.chunk(k), strict=True):
        assert torch.allclose(mine, batchnorm.MixMode(rho)(layer, group), atol=1e-4, rtol=1e-4)


@given(k=st.integers(1, 3), c=st.integers(1, 5), b=st.integers(1, 3))
def test_the_moments_are_those_of_all_values_of_a_group(k, c, b):
    x = a_stack(k, b, c, 4, 4)
    mean, var = grouped.moments(x, k)
    for i, group in enumerate(x.chunk(k)):
        values = group.movedim(1, 0).flatten(1)
        assert torch.allclose(mean[i], values.mean(1), atol=1e-4)
        assert torch.allclose(var[i], values.var(1), atol=1e-3)


def test_the_layout_in_memory_does_not_change_the_result():
    layer, x, mode = a_layer(4), a_stack(2, 3, 4, 6, 5), GroupedMode(torch.tensor([0.2, 0.9], device=DEVICE))
    y = mode(layer, x.contiguous(memory_format=torch.channels_last))
    assert torch.allclose(y, mode(layer, x), atol=1e-5)
    assert torch.allclose(mode.seen[0].var, mode.seen[1].var, rtol=1e-5)


def test_the_distance_of_all_layers_together_equals_that_of_each_layer_by_hand():
    layers = [a_layer(c) for c in (3, 5, 2, 4)]
    draw = torch.Generator().manual_seed(0)
    seen = [GroupStatistics(layers[0])]  # too few values
    for layer in layers[1:]:
        shape = (2, layer.num_features)
        seen.append(GroupStatistics(layer, *(torch.rand(shape, generator=draw).to(DEVICE) for _ in range(2))))
    by_layer = [torch.zeros(2)]
    for statistics in seen[1:]:
        scale = statistics.layer.running_var + statistics.layer.eps
        shift = ((statistics.mean[0] - statistics.layer.running_mean) ** 2 / scale).mean().log1p()
        by_layer.append(torch.stack([shift, (statistics.var[0] / scale).log().abs().mean()]).cpu())
    thirds = torch.stack([torch.stack(by_layer[:2]).mean(0), by_layer[2], by_layer[3]])
    assert torch.allclose(statistics_distance(seen, 1).cpu()[0], thirds.flatten(), atol=1e-5)


@triton
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 4, 4), (4, 4, 3, 16, 16), (3, 2, 5, 33, 70), (2, 1, 2, 5, 5)])
def test_the_triton_kernel_equals_the_torch_implementation(shape, learned):
    from ttdg.networks.batchnorm import grouped_triton

    k, c = shape[0], shape[2]
    layer, x = a_layer(c), a_stack(*shape)
    values = [LEARNED, 0.0] * k if learned else [0.0, 1.0, 0.4, 0.1]
    rho = torch.tensor(values[:k], device=DEVICE)
    own = torch.tensor([0.3], device=DEVICE) if learned else None
    for mine, expected in zip(
        grouped_triton.grouped_batch_norm(layer, x, rho, own),
        grouped._normalise(layer, x, rho, own),
        strict=True,
    ):
        assert torch.allclose(mine, expected, atol=2e-5, rtol=2e-5)


@triton
def test_the_triton_kernel_is_accurate_for_a_batch_far_from_the_source():
    from ttdg.networks.batchnorm import grouped_triton

    layer, x = a_layer(2), a_stack(1, 2, 2, 8, 8) + 50
    rho = torch.ones(1, device=DEVICE)
    y, mean, var = grouped_triton.grouped_batch_norm(layer, x, rho, None)
    values = x.double().movedim(1, 0).flatten(1)
    assert torch.allclose(mean[0].double(), values.mean(1), rtol=1e-5)
    assert torch.allclose(var[0].double(), values.var(1), rtol=1e-3)
    assert torch.allclose(y, grouped._normalise(layer, x, rho, None)[0], atol=1e-3)
