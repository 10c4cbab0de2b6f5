"""The U-Net: an encoder, a decoder that doubles the size of the deepest map five times, and a convolution as head.

Names of modules and the order in which they are made are those of MONAI's FlexibleUNet: weights fit both, and a seed
gives both the same values (`tests/networks/test_unet.py`).
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.networks.encoders import build_encoder

WIDTHS = (256, 128, 64, 32, 16)  # channels of the decoder's maps
LIGHT_WIDTHS = (64, 40, 24, 16, 16)  # after the light encoder
EPSILON = 1e-3  # of BatchNorm in the decoder


class UNet(nn.Module):
    """Maps images whose sides are multiples of 32 to logits of the same size."""

    def __init__(self, encoder: str, channels: int, labels: int) -> None:
        super().__init__()
        widths = LIGHT_WIDTHS if encoder == "light" else WIDTHS
        self.encoder = build_encoder(encoder, channels)
        self.decoder = UNetDecoder(self.encoder.widths, widths)
        self.segmentation_head = nn.Sequential(nn.Conv2d(widths[-1], labels, 3, padding=1))

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b l h w"]:
        """Logits of images."""
        return self.segmentation_head(self.decoder(self.encoder(images))[-1])


class UNetDecoder(nn.Module):
    """Five blocks; all but the last also receive the map of the encoder at their size.

    Args:
        features: channels of the maps of the encoder.
        widths: channels of the maps of the decoder.
    """

    def __init__(self, features: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        inputs, skips = (features[-1], *widths[:-1]), (*features[-2::-1], 0)
        self.blocks = nn.ModuleList(DecoderBlock(*sizes) for sizes in zip(inputs, skips, widths, strict=True))

    def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps at strides 16, 8, 4, 2 and 1, from the maps of the encoder."""
        x, maps = features[-1], []
        skips: list[Tensor | None] = [*features[-2::-1], None]
        for block, skip in zip(self.blocks, skips, strict=True):
            x = block(x, skip)
            maps.append(x)
        return tuple(maps)


class DecoderBlock(nn.Module):
    """Doubles the size of a map, joins it with a map of the encoder, and applies two 3×3 convolutions.

    Before it is joined, a 1×1 convolution halves its channels.

    Args:
        inputs: channels of the map.
        skip: channels of the map of the encoder; 0 if there is none.
        outputs: channels of the result.
    """

    def __init__(self, inputs: int, skip: int, outputs: int) -> None:
        super().__init__()
        kept = inputs // 2 if skip else inputs
        halving = {"preconv": nn.Conv2d(inputs, kept, 1)} if skip else {}
        self.upsample = _named(**halving, upsample_non_trainable=_Upsample())
        self.convs = _named(conv_0=_conv_norm(skip + kept, outputs), conv_1=_conv_norm(outputs, outputs))

    def forward(
        self, x: Float[Tensor, "b c h w"], skip: Float[Tensor, "b s y x"] | None = None
    ) -> Float[Tensor, "b d y x"]:
        """The map of twice the size."""
        x = self.upsample(x)
        return self.convs(x if skip is None else torch.cat([skip, x], dim=1))


class _Upsample(nn.Module):
    """Nearest-neighbour upsampling by 2 in the precision of its input.

    Autocast would compute it in float32, and then also the concatenation that follows, with the same values at twice
    the memory traffic.
    """

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c y x"]:
        with torch.autocast(x.device.type, enabled=False):
            return F.interpolate(x, scale_factor=2.0, mode="nearest")


def _conv_norm(inputs: int, outputs: int) -> nn.Sequential:
    """A 3×3 convolution, BatchNorm and ReLU."""
    norm = _named(N=nn.BatchNorm2d(outputs, eps=EPSILON), A=nn.ReLU(inplace=True))
    return _named(conv=nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), adn=norm)


def _named(**modules: nn.Module) -> nn.Sequential:
    """Modules in sequence, under their names in checkpoints."""
    return nn.Sequential(OrderedDict(modules))
