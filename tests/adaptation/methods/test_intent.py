import copy
from functools import partial

import pytest
import torch
from torch import nn

from ttdg.adaptation import adapt, losses
from ttdg.adaptation.methods.intent import RecordingMode, balanced_entropy, entropy_weights, interpolated_mode
from ttdg.networks import batchnorm

adapt = partial(adapt, activation="softmax")


def a_network(labels: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.Conv2d(6, labels, 1),
    )  # fmt: skip
    for layer in (network[1], network[4]):
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    return network.eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)) + 1


def member(network: nn.Module, share: float) -> torch.Tensor:
    network = copy.deepcopy(network)
    batchnorm.use(network, record := RecordingMode())
    with torch.no_grad():
        network(X)
        batchnorm.use(network, interpolated_mode(record, share))
        return network(X)


def test_the_first_member_is_the_source_and_the_last_has_the_recorded_statistics():
    network = a_network()
    with torch.no_grad():
        assert torch.equal(member(network, 0.0), network(X))
    recorded = copy.deepcopy(network)
    for layer in (recorded[1], recorded[4]):
        layer.momentum = 1.0
    with torch.no_grad():
        recorded.train()(X)
        assert torch.allclose(member(network, 1.0), recorded.eval()(X), atol=1e-6)


def test_two_members_are_the_extremes_alone():
    network = a_network()
    members = torch.stack([member(network, 0.0), member(network, 1.0)])
    expected = losses.mixture(members, "softmax", entropy_weights(balanced_entropy(members, "softmax")))
    assert torch.allclose(adapt(network, "intent", members=2)(X), expected, atol=1e-6)


def test_the_default_members_are_the_six_published_mixtures():
    assert adapt(a_network(), "intent").shares == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_where_test_statistics_are_the_sources_the_answer_is_the_sources(head):
    network = a_network()
    with torch.no_grad():
        for layer in (network[1], network[4]):
            layer.momentum = 1.0
        for _ in range(2):
            network.train()(X)
        source = losses.probabilities(network.eval()(X), head)
        answer = losses.probabilities(adapt(network, "intent", head=head)(X), head)
    assert torch.allclose(answer, source, atol=1e-5)


def test_weights_sum_to_one_and_favour_the_surest():
    e = torch.tensor([0.3, 0.1, 0.2])[:, None, None]
    w = entropy_weights(e)
    assert w.sum().item() == pytest.approx(1)
    assert w.flatten().argsort(descending=True).tolist() == [1, 2, 0]
    assert torch.allclose(w.flatten(), torch.tensor([0.0, 1.0, 0.5]).softmax(0))
    assert torch.allclose(entropy_weights(torch.full((4, 2, 1), 0.7)), torch.full((4, 2, 1), 0.25))


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_foreground_counts_as_much_as_background(head):
    def balanced(z: torch.Tensor) -> torch.Tensor:
        members = (
            z[None] if head == "sigmoid" else torch.stack([torch.zeros_like(z), z])
        )  # softmax: σ of z too
        return balanced_entropy(members[None, None], head).squeeze()

    z = torch.full((4, 4), -9.0)
    z[0, 0] = 0.5  # one unsure pixel of foreground among sure background
    H = losses.binary_entropy(z)
    assert torch.allclose(balanced(z), (H[0, 0] + (H.sum() - H[0, 0]) / 15) / 2)
    empty = torch.linspace(-3, -1, 16).view(4, 4)
    assert torch.allclose(balanced(empty), losses.binary_entropy(empty).mean())
    assert torch.allclose(balanced(-empty), losses.binary_entropy(empty).mean())


def test_each_image_has_weights_of_its_own():
    members = torch.randn(6, 3, 2, 4, 4)
    alone = torch.cat(
        [entropy_weights(balanced_entropy(members[:, i : i + 1], "softmax")) for i in range(3)], 1
    )
    assert torch.allclose(entropy_weights(balanced_entropy(members, "softmax")), alone)


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_a_mixture_of_logits_is_the_mean_of_predictions(head):
    members, w = (
        torch.randn(4, 2, 3, 5, 5, dtype=torch.float64),
        torch.rand(4, 2, 1, dtype=torch.float64).softmax(0),
    )
    p = torch.stack([losses.probabilities(m, head) for m in members])
    for weight, given in ((w[..., None, None], w), (torch.full((4, 1, 1, 1, 1), 0.25), None)):
        mixed = losses.probabilities(losses.mixture(members, head, given), head)
        assert torch.allclose(mixed, (weight * p).sum(0))
    assert losses.mixture(torch.full((2, 1, 2, 1, 1), 300.0), head).isfinite().all()
