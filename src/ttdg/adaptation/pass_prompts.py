"""The prompts of PASS: a residual on the image, and a bank of prompts at the bottleneck."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.adapter import Images
from ttdg.networks import split

KEPT = 0.1  # share of the feature channels that each prompt channel may change


class Prompts(nn.Module):
    """The two prompts: a residual on the image, and a bank that the deepest feature map reads by attention."""

    def __init__(self, channels: int, bottleneck: tuple[int, int, int], count: int) -> None:
        super().__init__()
        width, height, breadth = bottleneck
        self.decorator = nn.Sequential(
            nn.Conv2d(channels, 64, 1), nn.InstanceNorm2d(64), nn.ReLU(), nn.Conv2d(64, channels, 1)
        )
        self.bank = nn.Parameter(torch.zeros(1, count, height, breadth))
        self.query = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.key, self.value = (nn.Conv2d(count, count, 3, padding=1, groups=count) for _ in range(2))
        for start in (self.decorator[-1].weight, self.decorator[-1].bias, self.value.bias):
            nn.init.zeros_(start)  # type: ignore[arg-type]

    def decorate(self, images: Images) -> Images:
        """Add the residual to the images; an image of one pixel has no instance norm and is returned unchanged."""
        return images + self.decorator(images) if images[0, 0].numel() > 1 else images

    def attend(self, features: split.Features) -> split.Features:
        """Add W v to the deepest feature map, with W = softmax(q kᵀ/√K) over the K prompts, made sparse."""
        deepest = features[-1]
        bank: Tensor = self.bank
        if bank.shape[-2:] != deepest.shape[-2:]:
            bank = F.interpolate(self.bank, deepest.shape[-2:], mode="bilinear")
        q, k, v = (m(x).flatten(2) for m, x in ((self.query, deepest), (self.key, bank), (self.value, bank)))
        weights = keep_top_channels((q @ k.mT / bank.shape[1] ** 0.5).softmax(-1))
        return *features[:-1], deepest + (weights @ v).view_as(deepest)


def keep_top_channels(weights: Float[Tensor, "b c k"]) -> Float[Tensor, "b c k"]:
    """For every prompt channel keep the ⌊c/10⌋ largest weights, at least one, and set the others to 0."""
    kept = weights.topk(max(1, int(KEPT * weights.shape[1])), dim=1).indices
    return weights * torch.zeros_like(weights).scatter_(1, kept, 1.0)
