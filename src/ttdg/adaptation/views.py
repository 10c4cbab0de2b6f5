"""Views of a batch: flips, quarter turns and sizes, which can be undone on a prediction, and photometric changes.

Random numbers come from a generator on the images' device, so that the device never waits for the host.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ttdg.adaptation import losses
from ttdg.data.transforms import blur
from ttdg.errors import UserError

Images = Float[Tensor, "b c h w"]
Views = Literal["plain", "flips", "scales"]  # over which answers are averaged
SCALES = (1.0, 0.75, 1.25)
Noise = Literal["released", "strong"]  # standard deviation up to 0.05, or its square root


@dataclass(frozen=True)
class View:
    """A symmetry of the square: an optional horizontal flip, then `turns` quarter turns."""

    turns: int = 0
    mirrored: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the view to images (…, h, w)."""
        x = x.flip(-1) if self.mirrored else x
        return x.rot90(self.turns, (-2, -1)) if self.turns else x

    def inverse(self, x: Tensor) -> Tensor:
        """Undo the view, for instance on a prediction."""
        x = x.rot90(-self.turns, (-2, -1)) if self.turns else x
        return x.flip(-1) if self.mirrored else x


SQUARE_VIEWS = tuple(View(turns, mirrored) for mirrored in (False, True) for turns in range(4))  # all eight
SIX_VIEWS = (
    View(),
    View(0, True),
    View(2, True),
    View(1),
    View(2),
    View(3),
)  # identity, two flips, three turns


@dataclass(frozen=True)
class AnswerView:
    """An image at another size, mirrored or not."""

    scale: float = 1.0
    mirrored: bool = False

    def __call__(self, images: Float[Tensor, "b c *hw"]) -> Float[Tensor, "b c *yx"]:
        """Return the view of the images."""
        images = images.flip(3) if self.mirrored else images
        if self.scale == 1.0:
            return images
        if images.ndim != 4:
            raise UserError(
                'views="scales" are of images, not of volumes; use views="flips" or the slices as images'
            )
        size = [max(1, round(self.scale * side)) for side in images.shape[2:]]
        return F.interpolate(images, size, mode="bilinear", antialias=self.scale < 1)

    def inverse(self, logits: Float[Tensor, "b l *yx"], size: torch.Size) -> Float[Tensor, "b l *hw"]:
        """Return the logits of a view in the geometry of the images, whose height and width are `size`."""
        if logits.shape[2:] != size:
            logits = F.interpolate(logits, size, mode="bilinear")
        return logits.flip(3) if self.mirrored else logits


VIEW_SETS: Mapping[Views, tuple[AnswerView, ...]] = {  # the first view is the image itself
    "plain": (AnswerView(),),
    "flips": (AnswerView(), AnswerView(mirrored=True)),
    "scales": tuple(AnswerView(scale, mirrored) for scale in SCALES for mirrored in (False, True)),
}


def average_over_views(
    network: Callable[[Tensor], Tensor] | nn.Module,
    images: Images,
    head: losses.Head,
    views: Sequence[View] = SIX_VIEWS,
) -> Float[Tensor, "b l h w"]:
    """Return the logits of the mean prediction over the views, each undone before the mean.

    The network runs once for each view. One pass for all views would share BatchNorm statistics between them, and a
    quarter turn changes the shape of an image that is not square.
    """
    return losses.mixture(torch.stack([view.inverse(network(view(images))) for view in views]), head)


def photometric_view(images: Images, generator: Generator, noise: Noise = "released") -> Images:
    """Change brightness, contrast, gamma, noise and sharpness of each image at random; geometry stays the same.

    The order, strengths and probabilities are GraTa's. The standard deviation of the noise is up to 0.05: the library
    of the authors takes the drawn "variance" as the standard deviation. For the noise "strong" it is the square root of
    that value (up to 0.22).
    Brightness is drawn for each channel, all other strengths for each image. Each image is scaled to [0, 1] by its own
    minimum and maximum and scaled back at the end, so that the function works for any normalisation of the input.
    """
    b, c = images.shape[:2]

    def strengths(low: float, high: float, probability: float, neutral: float, channels: int = 1) -> Tensor:
        def uniform(width: int) -> Tensor:
            return torch.rand(b, width, 1, 1, generator=generator, device=images.device)

        return torch.where(uniform(1) < probability, low + (high - low) * uniform(channels), neutral)

    x = min_max_scaled(images) * strengths(0.5, 1.5, 0.75, 1.0, c)  # brightness
    mean = x.mean((2, 3), keepdim=True)
    x = (mean + strengths(0.5, 1.5, 0.75, 1.0) * (x - mean)).clamp(*_extremes(x, (2, 3)))  # contrast
    dark, light = _extremes(x)
    x = light - (light - dark) * (1 - min_max_scaled(x)) ** strengths(0.5, 2.0, 0.75, 1.0)  # inverted gamma
    grain = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    drawn = strengths(0.0, 0.05, 0.5, 0.0)
    x = x + (drawn.sqrt() if noise == "strong" else drawn) * grain
    x = blur(x, strengths(0.5, 1.5, 0.5, 0.0).flatten())
    low, high = _extremes(images)
    return (low + (high - low) * min_max_scaled(x)).to(images.dtype)


def min_max_scaled(images: Images) -> Images:
    """Scale each image to [0, 1] by its own minimum and maximum; a constant image becomes zeros."""
    low, high = _extremes(images)
    return (images - low) / (high - low).clamp(min=1e-6)


def _extremes(images: Images, over: tuple[int, ...] = (1, 2, 3)) -> tuple[Tensor, Tensor]:
    """Minimum and maximum over the dimensions `over`, which are kept with size 1."""
    return images.amin(over, keepdim=True), images.amax(over, keepdim=True)
