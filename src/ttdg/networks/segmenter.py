"""The network every method shares: E (encoder) and S (decoder and head) of the paper."""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.errors import UserError, suggestion

STRIDE = 32  # of the deepest map
ENCODERS = ("light", "resnet18", "resnet34", "resnet50")


@dataclass(frozen=True)
class NetworkSpec:
    """All that is needed to build the network again."""

    labels: int
    encoder: str = "resnet50"
    channels: int = 3
    strides: str = "v1.5"  # or "v1"


class Segmenter(nn.Module):
    """Images to logits over labels, in two halves: `forward = decode ∘ encode`, for sides that are multiples of 32.

    `strides="v1"` puts the stride of a bottleneck stage into its first 1×1 convolution, where ResNet v1
    weights (Caffe, Keras) expect it; torchvision's v1.5 has it in the 3×3.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        if spec.encoder not in ENCODERS:
            raise UserError(f"unknown encoder {spec.encoder!r}{suggestion(spec.encoder, ENCODERS)}")
        from monai.networks.nets.flexible_unet import FlexibleUNet

        from ttdg.networks.encoders import DECODERS  # registers our encoders with MONAI

        self.spec = spec
        widths = DECODERS.get(spec.encoder, (256, 128, 64, 32, 16))
        name = f"ttdg-{spec.encoder}"
        self.unet = FlexibleUNet(spec.channels, spec.labels, name, decoder_channels=widths, is_pad=False)
        if spec.strides == "v1":
            _move_strides(self.unet.encoder, spec.encoder)

    def encode(self, images: Float[Tensor, "b c h w"]) -> tuple[Tensor, ...]:
        if images.ndim != 4 or images.shape[1] != self.spec.channels or not images.is_floating_point():
            raise UserError(
                f"this network takes a batch of normalised images, floats of shape (images, {self.spec.channels}, "
                f"height, width), not {images.dtype} of shape {tuple(images.shape)}"
            )
        return tuple(self.unet.encoder(images))

    def decode(self, features: tuple[Tensor, ...]) -> Float[Tensor, "b l h w"]:
        return self.head(self.decoded(features)[-1])

    def decoded(self, features: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The decoder's maps at strides 16…1; the last is what the head reads."""
        x, maps = features[-1], []
        skips: list[Tensor | None] = [*features[:-1][::-1], None]
        for block, skip in zip(self.unet.decoder.blocks, skips, strict=True):
            x = block(x, skip)
            maps.append(x)
        return tuple(maps)

    def head(self, decoded: Float[Tensor, "b c h w"]) -> Float[Tensor, "b l h w"]:
        return self.unet.segmentation_head(decoded)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b l h w"]:
        """Any size: the border is repeated up to the next multiple of 32, and cut off again."""
        h, w = images.shape[-2:]
        return self.decode(self.encode(pad_to_stride(images)))[..., :h, :w]


def pad_to_stride(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c y x"]:
    """The border repeated up to the next multiple of the deepest stride, which is what `encode` takes."""
    h, w = images.shape[-2:]
    if h % STRIDE == 0 and w % STRIDE == 0:
        return images
    return F.pad(images, (0, -w % STRIDE, 0, -h % STRIDE), mode="replicate")


def _move_strides(encoder: nn.Module, name: str) -> None:
    if name != "resnet50":
        raise UserError(f"v1 strides exist for bottleneck encoders only (resnet50), not for {name}")
    for stage in (encoder.layer2, encoder.layer3, encoder.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)  # type: ignore[index,union-attr]
