import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ttdg.errors import UserError
from ttdg.networks import batchnorm
from ttdg.networks.batchnorm import BATCH, EVAL, TRAIN, MixMode


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


X = torch.randn(3, 5, 8, 8, dtype=torch.float64) * 2 + 7


def test_eval_and_train_are_torch_s_own():
    for mode, name in ((EVAL, "eval"), (TRAIN, "train")):
        theirs, ours = a_layer(), moded(a_layer(), mode)
        getattr(theirs, name)()
        assert torch.equal(ours(X), theirs(X))
        assert torch.equal(ours.running_mean, theirs.running_mean)
        assert torch.equal(ours.running_var, theirs.running_var)


@pytest.mark.parametrize("training", [True, False])
def test_batch_statistics_centre_the_batch_in_train_and_eval_mode_alike(training):
    """A published implementation fails here: after `.eval()` it used source statistics, and 7 became 6.95."""
    layer = nn.BatchNorm2d(5).double()
    batchnorm.use(layer, BATCH)
    y = layer.train(training)(X)
    assert y.mean((0, 2, 3)).abs().max() < 1e-12
    assert layer.running_mean.abs().max() == 0


@given(st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_mixed_statistics_are_the_formula(rho):
    layer = a_layer()
    mean = (1 - rho) * layer.running_mean + rho * X.mean((0, 2, 3))
    var = (1 - rho) * layer.running_var + rho * X.var((0, 2, 3))
    shape = (1, -1, 1, 1)
    expected = (X - mean.view(shape)) / (var.view(shape) + layer.eps).sqrt() * layer.weight.view(
        shape
    ) + layer.bias.view(shape)
    assert torch.allclose(moded(layer, MixMode(rho))(X), expected, atol=1e-10)


def test_the_ends_of_the_mixture_are_source_and_batch():
    layer = a_layer()
    assert torch.equal(moded(layer, MixMode(0.0))(X), moded(layer, EVAL)(X))
    count = (
        X.numel() / X.shape[1]
    )  # the mixed variance is unbiased, as running variances are; BATCH's is biased
    scaled = moded(layer, BATCH)(X) - layer.bias.view(1, -1, 1, 1)
    mixed = moded(layer, MixMode(1.0))(X) - layer.bias.view(1, -1, 1, 1)
    assert torch.allclose(mixed, scaled * ((count - 1) / count) ** 0.5, rtol=1e-5)


@pytest.mark.parametrize("mode", [EVAL, BATCH, MixMode(0.3)], ids=repr)
def test_buffers_are_written_by_train_alone(mode):
    layer = a_layer()
    ours = moded(layer, mode)
    ours(X)
    assert torch.equal(ours.running_mean, layer.running_mean)
    assert torch.equal(ours.running_var, layer.running_var)


@pytest.mark.parametrize("mode", [BATCH, TRAIN, MixMode(0.3)], ids=repr)
def test_too_few_values_fall_back_to_the_source(mode):
    layer, pooled = a_layer(), torch.randn(1, 5, 1, 1, dtype=torch.float64)
    assert torch.equal(moded(layer, mode)(pooled), moded(layer, EVAL)(pooled))


def test_names_and_copies_survive_a_mode():
    network = nn.Sequential(nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5))
    names = list(network.state_dict())
    batchnorm.use(network, BATCH)
    batchnorm.use(network, EVAL)
    assert list(network.state_dict()) == names
    assert copy.deepcopy(network)[1].mode == EVAL
    assert isinstance(network[1], nn.BatchNorm2d)


def test_one_and_three_dimensional_layers_mix_too():
    for layer, x in (
        (nn.BatchNorm1d(4), torch.randn(32, 4)),
        (nn.BatchNorm3d(4), torch.randn(2, 4, 3, 3, 3)),
    ):
        batchnorm.use(layer, MixMode(1.0))
        assert layer(x).transpose(0, 1).flatten(1).mean(1).abs().max() < 1e-5


def test_missing_running_statistics_are_reported():
    with pytest.raises(UserError, match="keep no running statistics"):
        batchnorm.use(nn.BatchNorm2d(3, track_running_stats=False), EVAL)


def test_a_map_too_small_for_batch_statistics_is_reported_if_there_are_no_running_statistics():
    layer = nn.BatchNorm2d(3, track_running_stats=False)
    batchnorm.use(layer, BATCH)
    assert layer(torch.randn(1, 3, 4, 4)).isfinite().all()
    with pytest.raises(UserError, match="at least 16 values per channel"):
        layer(torch.randn(1, 3, 3, 5))
