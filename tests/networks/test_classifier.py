"""The classifier: the encoder of the segmenter, a mean over the image, and a label map with one value."""

import pytest
import torch
from torch.nn import functional as F

from ttdg.networks import NETWORKS, Classifier, NetworkSpec, Segmenter, feature_maps, load_encoder
from ttdg.networks.losses import cross_entropy


@pytest.fixture(scope="module")
def network() -> Classifier:
    torch.manual_seed(0)
    return Classifier(NetworkSpec(labels=5, encoder="light")).eval()


def test_the_logits_are_those_of_a_linear_layer_of_the_mean_feature_at_every_pixel(network):
    images = torch.randn(3, 3, 64, 32)
    expected = F.linear(network.encode(images)[-1].mean((2, 3)), network.linear.weight, network.linear.bias)
    logits = network(images)
    assert logits.shape == (3, 5, 64, 32)
    torch.testing.assert_close(logits, expected[:, :, None, None].expand_as(logits))


def test_the_repeated_logits_take_no_memory(network):
    logits = network(torch.randn(2, 3, 64, 64))
    assert logits.untyped_storage().nbytes() == 2 * 5 * 4


def test_the_loss_over_the_pixels_is_the_cross_entropy_of_the_image_and_has_its_gradient(network):
    images, classes = torch.randn(4, 3, 32, 32), torch.tensor([0, 4, 2, 2])
    loss = cross_entropy(network(images), classes[:, None, None].expand(4, 32, 32))
    direct = F.cross_entropy(network(images)[:, :, 0, 0], classes)
    torch.testing.assert_close(loss, direct)
    for ours, theirs in zip(
        *(torch.autograd.grad(each, [*network.parameters()]) for each in (loss, direct)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_images_of_any_size_are_classified(network):
    assert network(torch.randn(1, 3, 40, 50)).shape == (1, 5, 40, 50)


def test_feature_maps_are_those_of_the_encoder(network):
    images = torch.randn(1, 3, 64, 64)
    logits, maps = feature_maps(network, images)
    assert list(maps) == ["input", "e0", "e1", "e2", "e3", "e4", "d0"]
    for level, expected in enumerate(network.encode(images)):
        assert maps[f"e{level}"].equal(expected)
    assert maps["d0"] is maps["e4"]
    assert maps["input"] is images
    assert logits.equal(network(images))


@pytest.mark.parametrize("encoder", ["light", "resnet18"])
def test_both_tasks_have_the_same_encoder_and_read_the_same_weights(encoder, tmp_path):
    donor, taker = (NETWORKS[task](NetworkSpec(4, encoder)) for task in ("segmentation", "classification"))
    assert isinstance(donor, Segmenter)
    torch.save(donor.image_encoder.state_dict(), tmp_path / "weights.pt")
    load_encoder(taker, tmp_path / "weights.pt")
    for name, value in taker.image_encoder.state_dict().items():
        assert value.equal(donor.image_encoder.state_dict()[name])
