"""The features that are chosen in the network of a user."""

import torch
import torch.nn.functional as F
from torch import nn

from ttdg.networks.taps import choose_taps


class Enlarging(nn.Module):
    """Returns logits that it enlarges itself, as DeepLab and FCN do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.deep = nn.Conv2d(16, 32, 3, 2, 1)
        self.classifier = nn.Sequential(nn.Conv2d(32, 12, 1), nn.ReLU(), nn.Conv2d(12, 2, 1))

    def forward(self, images):
        logits = self.classifier(self.deep(self.first(self.stem(images))))
        return F.interpolate(logits, size=images.shape[2:], mode="bilinear")


def test_logits_that_the_network_enlarges_are_no_features():
    assert choose_taps(Enlarging().eval(), torch.rand(1, 3, 32, 32)) == ("first", "classifier.1")


def test_logits_that_a_module_enlarges_are_no_features():
    network = nn.Sequential(
        nn.Conv2d(3, 8, 2, 2), nn.Conv2d(8, 16, 2, 2), nn.Conv2d(16, 2, 1), nn.Upsample(scale_factor=4)
    )
    assert choose_taps(network, torch.rand(1, 3, 32, 32)) == ("0", "1")


def test_the_maps_of_a_u_net_are_two_deep_ones_and_one_of_its_decoder():
    network = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 16, 2, 2), nn.Conv2d(16, 32, 2, 2), nn.Upsample(scale_factor=2),
        nn.Conv2d(32, 8, 1), nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=4), nn.Conv2d(8, 2, 1),
    )  # fmt: skip
    assert choose_taps(network, torch.rand(1, 3, 64, 64)) == ("1", "2", "5")
