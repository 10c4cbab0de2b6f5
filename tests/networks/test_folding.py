import copy

import pytest
import torch
from torch import nn

from ttdg.networks import NetworkSpec, Segmenter, batchnorm
from ttdg.networks.folding import FoldedNetwork, find_pairs, folded


class Branch(nn.Module):
    """A network that also uses a convolution's output before it is normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


def with_statistics(network: nn.Module, seed: int = 0) -> nn.Module:
    """Random statistics, γ and β in all BatchNorm layers, in EVAL mode."""
    torch.manual_seed(seed)
    for layer in batchnorm.layers(network):
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
        nn.init.uniform_(layer.weight, 0.5, 1.5)
        nn.init.normal_(layer.bias)
    batchnorm.use(network, batchnorm.EVAL)
    return network


@pytest.fixture(params=["light", "resnet18"])
def network(request):
    return with_statistics(Segmenter(NetworkSpec(2, request.param)).double())


@pytest.fixture
def images():
    return torch.randn(2, 3, 64, 64, dtype=torch.float64)


def test_a_folded_pass_and_its_gradients_equal_those_of_the_network(network, images):
    passes = FoldedNetwork(network)
    expected, found = network(images), passes(images)
    torch.testing.assert_close(found, expected)
    parameters = list(network.parameters())
    gradients = [torch.autograd.grad(x.square().mean(), parameters) for x in (expected, found)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-12)


def test_every_batchnorm_layer_of_a_unet_is_folded(network):
    assert len(find_pairs(network)) == len(list(batchnorm.layers(network)))


def test_the_network_is_itself_again_after_a_folded_pass(network, images):
    expected = network(images)
    FoldedNetwork(network)(images)
    torch.testing.assert_close(network(images), expected, rtol=0, atol=0)
    assert not any("forward" in vars(m) or "_conv_forward" in vars(m) for m in network.modules())


def test_an_error_in_a_folded_pass_leaves_no_trace(network):
    pairs = find_pairs(network)
    with pytest.raises(ZeroDivisionError), folded(pairs):
        raise ZeroDivisionError
    assert not any("forward" in vars(m) for m in network.modules())


def test_changed_weights_and_statistics_count_in_the_next_pass(network, images):
    passes = FoldedNetwork(network)
    passes(images)
    with_statistics(network, seed=1)
    torch.testing.assert_close(passes(images), network(images))


def test_a_network_that_uses_a_convolution_twice_is_not_folded():
    branch = with_statistics(Branch())
    images = torch.randn(2, 3, 8, 8)
    assert not find_pairs(branch)
    torch.testing.assert_close(FoldedNetwork(branch)(images), branch(images), rtol=0, atol=0)


def test_layers_on_batch_statistics_are_not_folded(network):
    batchnorm.use(network, batchnorm.BATCH)
    assert not find_pairs(network)


def test_copies_of_a_network_are_folded_on_their_own(network, images):
    passes = FoldedNetwork(network)
    passes(images)
    other = copy.deepcopy(network)
    with_statistics(other, seed=2)
    torch.testing.assert_close(FoldedNetwork(other)(images), other(images))
    assert not torch.allclose(passes(images), other(images))
