"""A decoder that removes blind-spot noise (Noise2Void), as DeY-Net needs it beside the segmentation's."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ttdg.types import Part

Images = Float[Tensor, "b c h w"]
Features = tuple[Tensor, ...]

SHARE, REACH = 0.1, 2  # of the pixels replaced; each by one at most so far away
WIDEST = 128  # channels of the decoder's blocks


class Denoiser(nn.Module):
    """From the encoder's pyramid back to an image in [0, 1]: up, beside the skip, convolve, once a level."""

    def __init__(self, channels: list[int], image: int) -> None:
        super().__init__()
        self.channels = channels
        self.blocks = nn.ModuleList()
        inputs = channels[-1]
        for skip in [*channels[-2::-1], 0]:
            width = min(WIDEST, skip or inputs)
            convolution = nn.Conv2d(inputs + skip, width, 3, padding=1, bias=False)
            self.blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU()))
            inputs = width
        self.head = nn.Conv2d(inputs, image, 1)

    def forward(self, features: Features, images: Images) -> Images:
        x = features[-1]
        for block, skip in zip(self.blocks, [*features[-2::-1], None], strict=True):
            x = F.interpolate(x, (images if skip is None else skip).shape[-2:])
            x = block(x if skip is None else torch.cat([x, skip], 1))
        return self.head(x).sigmoid()

    def to_part(self, mean: list[float], std: list[float]) -> Part:
        """`mean` and `std` undo the normalisation of the images, channel by channel."""
        settings = {"channels": self.channels, "image": self.head.out_channels, "mean": mean, "std": std}
        return Part(self.state_dict(), settings)

    @classmethod
    def from_part(cls, part: Part, device: torch.device) -> "Denoiser":
        made = cls(part.settings["channels"], part.settings["image"])
        made.load_state_dict(dict(part.tensors))
        return made.to(device).eval().requires_grad_(False)


def corrupt(images: Images, generator: torch.Generator) -> tuple[Images, Bool[Tensor, "b 1 h w"]]:
    """Blind spots: at ⌊0.1·h·w⌋ places, drawn with replacement, a pixel from the 5 × 5 around it (which may be itself,
    and which wraps around the border) takes its place; and where that was."""
    b, c, h, w = images.shape
    draw = {"generator": generator, "device": images.device}
    spots = torch.randint(h * w, (b, max(1, int(SHARE * h * w))), **draw)  # type: ignore[call-overload]
    chosen = torch.zeros(b, h * w, dtype=torch.bool, device=images.device).scatter_(1, spots, True)
    dy, dx = torch.randint(-REACH, REACH + 1, (2, b, h, w), **draw)  # type: ignore[call-overload]
    y, x = (torch.arange(side, device=images.device) for side in (h, w))
    neighbour = ((y[:, None] + dy) % h * w + (x + dx) % w).flatten(1)
    replaced = images.flatten(2).gather(2, neighbour[:, None].expand(-1, c, -1)).view_as(images)
    where = chosen.view(b, 1, h, w)
    return torch.where(where, replaced, images), where


def denoising_loss(denoised: Images, target: Images, where: Bool[Tensor, "b 1 h w"]) -> Tensor:
    """L1 at the blind spots, averaged over all pixels."""
    return ((denoised - target).abs() * where).mean()
