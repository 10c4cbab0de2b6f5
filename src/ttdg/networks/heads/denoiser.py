"""A second decoder that removes blind-spot noise (Noise2Void), for DeY-Net."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ttdg.types import Part

Images = Float[Tensor, "b c h w"]
Features = tuple[Tensor, ...]

CORRUPTED_SHARE = 0.1  # share of pixels that are replaced
NEIGHBOUR_RADIUS = 2  # a replacement is at most so many pixels away along each axis
MAX_WIDTH = 128  # maximum channels of the decoder's blocks


class Denoiser(nn.Module):
    """Reconstructs an image in [0, 1] from the encoder's pyramid.

    Each level is upsampled, concatenated with the skip connection, and convolved.

    Args:
        channels: channels of the pyramid's maps, from fine to deep.
        image: channels of the image.
    """

    def __init__(self, channels: list[int], image: int) -> None:
        super().__init__()
        self.channels = channels
        self.blocks = nn.ModuleList()
        inputs = channels[-1]
        for skip in [*channels[-2::-1], 0]:
            width = min(MAX_WIDTH, skip or inputs)
            convolution = nn.Conv2d(inputs + skip, width, 3, padding=1, bias=False)
            self.blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU()))
            inputs = width
        self.head = nn.Conv2d(inputs, image, 1)

    def forward(self, features: Features, images: Images) -> Images:
        """The reconstruction, in the size of `images`."""
        x = features[-1]
        for block, skip in zip(self.blocks, [*features[-2::-1], None], strict=True):
            x = F.interpolate(x, (images if skip is None else skip).shape[-2:])
            x = block(x if skip is None else torch.cat([x, skip], 1))
        return self.head(x).sigmoid()

    def to_part(self, mean: list[float], std: list[float]) -> Part:
        """The denoiser as a part; `mean` and `std` per channel invert the normalisation of images."""
        settings = {"channels": self.channels, "image": self.head.out_channels, "mean": mean, "std": std}
        return Part(self.state_dict(), settings)

    @classmethod
    def from_part(cls, part: Part, device: torch.device) -> "Denoiser":
        """The frozen denoiser that `to_part` stored."""
        made = cls(part.settings["channels"], part.settings["image"])
        made.load_state_dict(dict(part.tensors))
        return made.to(device).eval().requires_grad_(False)


def corrupt(images: Images, generator: torch.Generator) -> tuple[Images, Bool[Tensor, "b 1 h w"]]:
    """Images with blind spots, and the mask of the blind spots.

    ⌊0.1·h·w⌋ positions are drawn with replacement. The pixel at each is replaced by a random pixel of the 5 × 5 window
    around it, which may be the pixel itself. Windows wrap around at the border.
    """
    b, c, h, w = images.shape
    draw = {"generator": generator, "device": images.device}
    spots = torch.randint(h * w, (b, max(1, int(CORRUPTED_SHARE * h * w))), **draw)  # type: ignore[call-overload]
    chosen = torch.zeros(b, h * w, dtype=torch.bool, device=images.device).scatter_(1, spots, True)
    dy, dx = torch.randint(-NEIGHBOUR_RADIUS, NEIGHBOUR_RADIUS + 1, (2, b, h, w), **draw)  # type: ignore[call-overload]
    y, x = (torch.arange(side, device=images.device) for side in (h, w))
    neighbour = ((y[:, None] + dy) % h * w + (x + dx) % w).flatten(1)
    replaced = images.flatten(2).gather(2, neighbour[:, None].expand(-1, c, -1)).view_as(images)
    mask = chosen.view(b, 1, h, w)
    return torch.where(mask, replaced, images), mask


def denoising_loss(denoised: Images, target: Images, mask: Bool[Tensor, "b 1 h w"]) -> Tensor:
    """L1 distance at the blind spots, averaged over all pixels."""
    return ((denoised - target).abs() * mask).mean()
