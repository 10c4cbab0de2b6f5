import pytest
import torch
from torch import nn

from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.fixed import _FixedNorm

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def a_layer(device: str) -> nn.BatchNorm2d:
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(6).to(device, torch.float64)
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    nn.init.uniform_(layer.weight, 0.5, 1.5)
    nn.init.normal_(layer.bias)
    return layer


def apply(layer: nn.BatchNorm2d, x: torch.Tensor) -> torch.Tensor:
    return _FixedNorm.apply(x, layer.weight, layer.bias, layer.running_mean, layer.running_var, layer.eps)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_output_and_gradients_are_those_of_torch_in_eval_mode(device, form):
    layer = a_layer(device).eval()
    x = (
        torch.randn(3, 6, 5, 4, dtype=torch.float64, device=device)
        .contiguous(memory_format=form)
        .requires_grad_()
    )
    g = torch.randn_like(x)
    expected, found = layer(x), apply(layer, x)
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected, (x, layer.weight, layer.bias), g)
    for one, other in zip(torch.autograd.grad(found, (x, layer.weight, layer.bias), g), wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_the_gradient_is_that_of_finite_differences():
    layer = a_layer("cpu")
    x = torch.randn(2, 6, 3, 3, dtype=torch.float64, requires_grad=True)
    statistics = layer.running_mean, layer.running_var, 1e-3
    inputs = x, layer.weight, layer.bias
    assert torch.autograd.gradcheck(lambda *values: _FixedNorm.apply(*values, *statistics), inputs)


def test_the_fixed_mode_equals_eval_mode_and_changes_no_statistics():
    layer, x = a_layer("cpu"), torch.randn(2, 6, 3, 3, dtype=torch.float64)
    expected, before = layer.eval()(x), layer.running_mean.clone()
    batchnorm.use(layer, batchnorm.FIXED)
    layer.train()
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=0)
    assert layer.running_mean.equal(before)
