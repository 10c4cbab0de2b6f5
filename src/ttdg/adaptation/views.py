"""Views of a batch: the symmetries of the square, which a prediction can be turned back from, and other lights.

Random numbers come from a generator on the images' device, so that nothing waits for the host.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ttdg.adaptation import losses
from ttdg.data.transforms import blur

Images = Float[Tensor, "b c h w"]


@dataclass(frozen=True)
class View:
    """Mirrored left to right or not, then turned by quarter turns."""

    turns: int = 0
    mirrored: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        x = x.flip(-1) if self.mirrored else x
        return x.rot90(self.turns, (-2, -1)) if self.turns else x

    def back(self, x: Tensor) -> Tensor:
        x = x.rot90(-self.turns, (-2, -1)) if self.turns else x
        return x.flip(-1) if self.mirrored else x


SQUARE = tuple(View(turns, mirrored) for mirrored in (False, True) for turns in range(4))
SIX = (View(), View(0, True), View(2, True), View(1), View(2), View(3))  # itself, two flips, three turns


def average_over_views(
    network: Callable[[Tensor], Tensor] | nn.Module,
    images: Images,
    head: losses.Head,
    views: Sequence[View] = SIX,
) -> Float[Tensor, "b l h w"]:
    """The mean prediction over the views, each turned back, as logits. A pass for each view: under batch statistics
    every view has its own, and a quarter turn of an oblong image has another shape."""
    return losses.mixture(torch.stack([view.back(network(view(images))) for view in views]), head)


def photometric_view(images: Images, generator: Generator) -> Images:
    """Another light, response, focus and sensor for each image; nothing moves, so a prediction needs no turning back.

    Brightness of each channel, contrast within each channel's range, inverted gamma within the image's, noise and
    blur, as strong and as often as in GraTa; but for brightness, the channels of an image share each strength. Each
    image is brought to [0, 1] by its own extremes and back to them, so any normalisation of the input will do.
    """
    b, c = images.shape[:2]

    def some(low: float, high: float, share: float, neutral: float, channels: int = 1) -> Tensor:
        def drawn(width: int) -> Tensor:
            return torch.rand(b, width, 1, 1, generator=generator, device=images.device)

        return torch.where(drawn(1) < share, low + (high - low) * drawn(channels), neutral)

    x = min_max_scaled(images) * some(0.5, 1.5, 0.75, 1.0, c)
    mean = x.mean((2, 3), keepdim=True)
    x = (mean + some(0.5, 1.5, 0.75, 1.0) * (x - mean)).clamp(*_extremes(x, (2, 3)))
    dark, light = _extremes(x)
    x = light - (light - dark) * (1 - min_max_scaled(x)) ** some(0.5, 2.0, 0.75, 1.0)
    noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    x = x + some(0.0, 0.05, 0.5, 0.0).sqrt() * noise
    x = blur(x, some(0.5, 1.5, 0.5, 0.0).flatten())
    low, high = _extremes(images)
    return (low + (high - low) * min_max_scaled(x)).to(images.dtype)


def min_max_scaled(images: Images) -> Images:
    """Each image by its own extremes in [0, 1]; a constant one becomes zeros."""
    low, high = _extremes(images)
    return (images - low) / (high - low).clamp(min=1e-6)


def _extremes(images: Images, over: tuple[int, ...] = (1, 2, 3)) -> tuple[Tensor, Tensor]:
    """The least and the greatest number of each image, or of each channel of it."""
    return images.amin(over, keepdim=True), images.amax(over, keepdim=True)
