"""Element-wise networks and MixStyle, for ITTA.

ITTA learns a measure of the difference between features of an image and of the same image in another style.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.types import Part

LEVELS = (1, 2)  # pyramid levels at which styles are mixed; each pass draws one of them
ALPHA = 0.1  # mixing weights are drawn from Beta(α, α)

Statistics = tuple[Tensor, Tensor]  # mean and standard deviation, each of shape (b, c, 1, 1)


class ElementWiseNet(nn.Module):
    """Layers w ⊙ x + b with ReLU between them, initialised to the identity for non-negative inputs.

    Args:
        shape: shape of x without the batch dimension.
        layers: number of layers.
    """

    def __init__(self, shape: tuple[int, ...], layers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(layers, *shape))
        self.bias = nn.Parameter(torch.zeros(layers, *shape))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers to `x`, which may have leading batch dimensions."""
        last = len(self.weight) - 1
        for i, (w, b) in enumerate(zip(self.weight, self.bias, strict=True)):
            x = w * x + b if i == last else (w * x + b).relu()
        return x

    def to_part(self) -> Part:
        """The network as a part of a checkpoint."""
        return Part(self.state_dict(), {"width": self.weight.shape[1], "layers": len(self.weight)})

    @classmethod
    def from_part(cls, part: Part, device: torch.device) -> "ElementWiseNet":
        """The frozen network that `to_part` stored."""
        made = cls((part.settings["width"],), part.settings["layers"])
        made.load_state_dict(dict(part.tensors))
        return made.to(device).requires_grad_(False)


class MixStyle:
    """Forward hooks of an encoder that mix the style of the second half of a batch with that of other images.

    The second half repeats the images of the first half. The style of an image is the mean and standard deviation of
    each channel. Each image is mixed with the preceding image of the batch, and the first with the last. A single image
    is mixed with the last image of the previous batch if `remember` is True, and is otherwise unchanged. Call
    `next_batch` after the last pass of each batch.

    Args:
        producers: for each level of the pyramid, the module whose output it is.
        seed: seed of the random levels and mixing weights.
        remember: whether a single image is mixed with the last image of the previous batch.
    """

    def __init__(self, producers: list[nn.Module], seed: int, remember: bool = True) -> None:
        self.levels = [level for level in LEVELS if level < len(producers)] or [0]
        self.seed, self.remember = seed, remember
        self.level: int | None = None  # level at which the hooks mix styles; None if they are inactive
        self.handles = [
            producers[level].register_forward_hook(partial(self._mixed, level)) for level in self.levels
        ]
        self.reset()

    def encode_both(self, network: Any, images: Float[Tensor, "b c h w"]) -> tuple[Tensor, ...]:
        """The pyramid of a batch that contains the images, then the same images in another style."""
        self.level = self.levels[int(self.rng.random() < 0.5) % len(self.levels)]
        try:
            features: tuple[Tensor, ...] = network.encode(torch.cat([images, images]))
            return features
        finally:
            self.level = None

    def _mixed(self, level: int, module: nn.Module, inputs: Any, x: Tensor) -> Tensor | None:
        """The hook of one level: its output with the styles of the second half mixed."""
        if self.level is None:
            return None
        plain, styled = x.chunk(2)
        styles = style_statistics(plain)
        self._last[level] = (styles[0][-1:], styles[1][-1:])
        if level != self.level:
            return None
        partners = self._partners(styles, self._previous.get(level))
        return torch.cat([plain, mix_style(styled, partners, self._weights(styled))])

    def _partners(self, styles: Statistics, previous: Statistics | None) -> Statistics:
        if len(styles[0]) > 1:
            return styles[0].roll(1, 0), styles[1].roll(1, 0)
        return previous if self.remember and previous is not None else styles

    def _weights(self, x: Tensor) -> Float[Tensor, "b 1 1 1"]:
        drawn = self.rng.beta(ALPHA, ALPHA, (len(x), 1, 1, 1))
        return torch.from_numpy(drawn).to(x)

    def reset(self) -> None:
        """Restart the random numbers and forget earlier batches."""
        self.rng = np.random.default_rng(self.seed % 2**32)  # NumPy takes no negative seeds
        self._previous: dict[int, Statistics] = {}  # by level, the style of the previous batch's last image
        self._last: dict[
            int, Statistics
        ] = {}  # by level, the style of this batch's last image in its latest pass

    def next_batch(self) -> None:
        """End a batch: its last image becomes the previous image of the next batch."""
        self._previous, self._last = self._last, {}

    def remove(self) -> None:
        """Remove the hooks from the encoder."""
        for handle in self.handles:
            handle.remove()


def style_statistics(x: Float[Tensor, "b c h w"]) -> Statistics:
    """Mean and standard deviation of each channel of each image, detached from the graph.

    The variance is the unbiased one, as in the authors' code of MixStyle; that of a single pixel is 0.
    """
    correction = int(x.shape[-2] * x.shape[-1] > 1)
    var, mean = torch.var_mean(x.detach(), (2, 3), correction=correction, keepdim=True)
    return mean, (var + 1e-6).sqrt()


def mix_style(
    x: Float[Tensor, "b c h w"], partner: Statistics, weight: Float[Tensor, "b 1 1 1"]
) -> Float[Tensor, "b c h w"]:
    """Images with their style replaced by weight·(own style) + (1−weight)·(style of the partner)."""
    mean, std = style_statistics(x)
    style_mean, style_std = (weight * a + (1 - weight) * b for a, b in zip((mean, std), partner, strict=True))
    return (x - mean) / std * style_std + style_mean


def pooled_features(features: tuple[Tensor, ...]) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b c"]]:
    """Spatial means z and z' of the deepest map, of the images and of the images in another style."""
    z, other = features[-1].mean((2, 3)).chunk(2)
    return z, other
