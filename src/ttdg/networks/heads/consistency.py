"""Element-wise nets and MixStyle, as ITTA needs them: a learnt measure of what another style does to features."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.types import Part

LEVELS = (1, 2)  # of the pyramid, where styles are mixed: one of them, by chance
ALPHA = 0.1  # of Beta(α, α), MixStyle's weights

Statistics = tuple[Tensor, Tensor]  # mean and standard deviation, (b, c, 1, 1) each


class ElementWise(nn.Module):
    """Layers of w ⊙ x + b with ReLU between. Starts as the identity of what is not negative."""

    def __init__(self, shape: tuple[int, ...], layers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(layers, *shape))
        self.bias = nn.Parameter(torch.zeros(layers, *shape))

    def forward(self, x: Tensor) -> Tensor:
        last = len(self.weight) - 1
        for i, (w, b) in enumerate(zip(self.weight, self.bias, strict=True)):
            x = w * x + b if i == last else (w * x + b).relu()
        return x

    def to_part(self) -> Part:
        return Part(self.state_dict(), {"width": self.weight.shape[1], "layers": len(self.weight)})

    @classmethod
    def from_part(cls, part: Part, device: torch.device) -> "ElementWise":
        made = cls((part.settings["width"],), part.settings["layers"])
        made.load_state_dict(dict(part.tensors))
        return made.to(device).requires_grad_(False)


class MixStyle:
    """Hooks in an encoder that give the second half of a batch the style of other images of the first half, mixed with
    its own. At batch 1 nobody else is there: the image before it stands in where `remember` is set, else nothing. Call
    `next_batch` after a batch's last pass: until then the image before stays the one before the batch."""

    def __init__(self, producers: list[nn.Module], seed: int, remember: bool = True) -> None:
        self.levels = [level for level in LEVELS if level < len(producers)] or [0]
        self.seed, self.remember = seed, remember
        self.level: int | None = None  # where styles are mixed in the passes to come; None: nowhere
        self.handles = [producers[level].register_forward_hook(self._hook(level)) for level in self.levels]
        self.reset()

    def twice(self, network: Any, images: Float[Tensor, "b c h w"]) -> tuple[Tensor, ...]:
        """The pyramid of the images, and below it that of the same images in another style, in one pass."""
        self.level = self.levels[int(self.rng.random() < 0.5) % len(self.levels)]
        try:
            features: tuple[Tensor, ...] = network.encode(torch.cat([images, images]))
            return features
        finally:
            self.level = None

    def _hook(self, level: int) -> Any:
        def hook(module: nn.Module, inputs: Any, x: Tensor) -> Tensor | None:
            if self.level is None:
                return None
            own, other = x.chunk(2)
            now = statistics(own)
            self.met[level] = (now[0][-1:], now[1][-1:])
            if level != self.level:
                return None
            partners = self._partners(now, self.past.get(level))
            return torch.cat([own, mix_statistics(other, partners, self._weights(other))])

        return hook

    def _partners(self, now: Statistics, before: Statistics | None) -> Statistics:
        if len(now[0]) > 1:
            return now[0].roll(1, 0), now[1].roll(1, 0)
        return before if self.remember and before is not None else now

    def _weights(self, x: Tensor) -> Float[Tensor, "b 1 1 1"]:
        drawn = self.rng.beta(ALPHA, ALPHA, (len(x), 1, 1, 1))
        return torch.from_numpy(drawn).to(x)

    def reset(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.past: dict[int, Statistics] = {}
        self.met: dict[int, Statistics] = {}  # of the last image, in this batch's latest pass

    def next_batch(self) -> None:
        self.past, self.met = self.met, {}

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def statistics(x: Float[Tensor, "b c h w"]) -> Statistics:
    """Mean and standard deviation of each channel of each image, as constants."""
    var, mean = torch.var_mean(x.detach(), (2, 3), correction=0, keepdim=True)
    return mean, (var + 1e-6).sqrt()


def mix_statistics(
    x: Float[Tensor, "b c h w"], partner: Statistics, weight: Float[Tensor, "b 1 1 1"]
) -> Float[Tensor, "b c h w"]:
    """The image's own style with `weight`, the partner's with the rest."""
    mean, std = statistics(x)
    style_mean, style_std = (weight * a + (1 - weight) * b for a, b in zip((mean, std), partner, strict=True))
    return (x - mean) / std * style_std + style_mean


def pooled_features(features: tuple[Tensor, ...]) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b c"]]:
    """z and z': the mean over places of the deepest map, of the images and of their other style."""
    z, other = features[-1].mean((2, 3)).chunk(2)
    return z, other
