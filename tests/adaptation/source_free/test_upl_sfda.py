import math

import pytest
import torch
from torch import nn

from ttdg.adaptation import adapt, losses
from ttdg.adaptation.source_free.upl_sfda import (
    TURNS,
    class_maps,
    entropy_in_bits,
    four_views,
    reliable_dice,
    reliable_labels,
)
from ttdg.networks import NetworkSpec, Segmenter

STILL = {"statistics": "source"}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Segmenter(NetworkSpec(labels=3, encoder="light")).eval()


class Pointwise(nn.Module):
    """A network that commutes with turns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 3, 1)

    def encode(self, images):
        return (self.first(images).relu(),)

    def decode(self, features):
        return self.second(features[0])

    def forward(self, images):
        return self.decode(self.encode(images))


def some_images(count=4, size=32, seed=0):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed)) - 0.4


def test_turning_and_turning_back_is_the_identity():
    x = torch.rand(2, 3, 8, 8)
    assert all(torch.equal(view.inverse(view(x)), x) for view in TURNS)
    oblong = torch.rand(2, 3, 8, 6)
    assert all(view(oblong).shape == oblong.shape for view in four_views(oblong))
    assert all(torch.equal(view.inverse(view(oblong)), oblong) for view in four_views(oblong))
    assert len(set(four_views(oblong))) == 4


def test_decoders_share_the_encoder_and_nothing_else(network):
    adapter = adapt(network, "upl-sfda")
    encoder = {id(p) for p in adapter.network.unet.encoder.parameters()}
    own = {id(p) for p in adapter.network.parameters()}
    for twin in adapter.copies:
        theirs = {id(p) for p in twin.parameters()}
        assert theirs & own == encoder
        assert torch.equal(twin.unet.segmentation_head[0].weight, network.unet.segmentation_head[0].weight)
    assert len({id(p) for p in adapter.parameters}) == len(own) + 3 * len(own - encoder)


def test_the_first_decoder_on_the_unturned_view_is_the_source(network):
    adapter = adapt(network, "upl-sfda")
    with torch.no_grad():
        assert torch.allclose(adapter._members(some_images())[0], network(some_images()), atol=1e-5)


def test_decoders_of_a_network_that_commutes_with_turns_agree():
    torch.manual_seed(0)
    members = adapt(Pointwise(), "upl-sfda")._members(some_images()).detach()
    assert torch.allclose(members, members[:1].expand_as(members), atol=1e-5)


def test_without_a_rate_the_answer_is_the_sources_mean_over_four_turns(network):
    adapter = adapt(network, "upl-sfda", lr=0.0, epochs=1, **STILL)
    adapter.learn([some_images(6)])
    with torch.no_grad():
        turned = [view.inverse(network(view(some_images()))).softmax(1) for view in TURNS]
        found = adapter.predict_frozen(some_images()).softmax(1)
    assert torch.allclose(found, torch.stack(turned).mean(0), atol=1e-5)


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_a_threshold_of_one_labels_nothing_and_only_entropy_acts(head):
    q = class_maps(torch.randn(2, 3, 8, 8), head)
    labels = reliable_labels(q, 1.0, head)
    assert not labels.any()
    assert reliable_dice(q[None], labels.float()) == 0


def test_a_threshold_of_zero_labels_every_pixel_with_every_class():
    assert reliable_labels(class_maps(torch.randn(2, 3, 8, 8), "softmax"), 0.0, "softmax").all()


def test_entropy_is_zero_for_one_hot_and_divided_by_the_number_of_classes():
    hard = torch.zeros(2, 2, 4, 4)
    hard[:, 0] = 1
    assert entropy_in_bits(hard, "softmax").abs() < 1e-6
    uniform = torch.full((2, 2, 4, 4), 0.5)
    assert entropy_in_bits(uniform, "softmax").item() == pytest.approx(0.5)
    assert entropy_in_bits(class_maps(torch.zeros(2, 3, 4, 4), "sigmoid"), "sigmoid").item() == pytest.approx(
        1.0
    )


def test_entropy_of_a_sigmoid_head_is_the_binary_entropy_in_bits():
    logits = torch.randn(2, 3, 4, 4)
    expected = losses.entropy(logits, "sigmoid").mean() / math.log(2)
    assert torch.allclose(entropy_in_bits(class_maps(logits, "sigmoid"), "sigmoid"), expected, atol=1e-5)


def test_labels_of_a_batch_are_those_of_its_images():
    q = (4 * torch.randn(3, 3, 16, 16)).softmax(1)
    whole = reliable_labels(q, 0.5, "softmax")
    assert torch.equal(whole, torch.cat([reliable_labels(q[i : i + 1], 0.5, "softmax") for i in range(3)]))


def test_only_structures_lose_their_smaller_components():
    q = torch.zeros(1, 2, 8, 8)
    q[:, 1] = 0.97
    q[0, 1, 3] = 0.01  # a row of background between two components
    q[0, 1, 0, 0], q[0, 1, 7, 7] = 0.01, 0.01  # and single pixels of background
    q[:, 0] = 1 - q[:, 1]
    labels = reliable_labels(q, 0.95, "softmax")
    assert labels[0, 0].sum() == 10
    assert not labels[0, 1, :3].any()
    assert labels[0, 1, 4:].sum() == 31


def test_dice_rewards_recall_on_labelled_pixels_alone():
    labels = torch.zeros(1, 1, 4, 4)
    labels[0, 0, :2] = 1
    q = torch.rand(1, 1, 1, 4, 4)
    other = q.clone()
    other[..., 2:, :] = 0.9
    assert reliable_dice(q, labels) == reliable_dice(other, labels)
    kept = q[0, 0, 0, :2]
    expected = 1 - (2 * kept.sum() + 1e-4) / (8 + kept.square().sum() + 1e-4)
    assert torch.allclose(reliable_dice(q, labels), expected)
    assert reliable_dice(torch.ones_like(q), labels).abs() < 1e-6


def test_encoder_and_decoders_have_the_published_momenta(network):
    adapter = adapt(network, "upl-sfda")
    encoder, decoders = adapter.optimiser.param_groups
    assert (encoder["betas"], decoders["betas"]) == ((0.9, 0.999), (0.5, 0.999))
    assert {id(p) for p in encoder["params"]} == {id(p) for p in adapter.network.unet.encoder.parameters()}
    assert len(encoder["params"]) + len(decoders["params"]) == len(adapter.parameters)


def test_all_decoders_learn_and_reset_restores_them(network):
    adapter = adapt(network, "upl-sfda", lr=1e-3, steps=1, draw=2)
    adapter(some_images())
    heads = [twin.unet.segmentation_head[0].weight for twin in (adapter.network, *adapter.copies)]
    source = network.unet.segmentation_head[0].weight
    assert not any(torch.equal(head, source) for head in heads)
    assert not torch.equal(heads[1], heads[2])
    adapter.reset()
    assert all(torch.equal(head, source) for head in heads)
    for twin in adapter.copies:
        assert all(torch.equal(a, b) for a, b in zip(twin.buffers(), network.buffers(), strict=True))
