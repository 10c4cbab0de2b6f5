"""What all networks share, and the segmentation network: encoder E, and decoder with head S in the paper's notation."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.arguments import whole_number
from ttdg.errors import UserError, suggestion
from ttdg.networks.strides import set_strides
from ttdg.networks.unet import UNet

STRIDE = 32  # stride of the deepest feature map
ENCODERS = ("light", "resnet18", "resnet34", "resnet50")


@dataclass(frozen=True)
class NetworkSpec:
    """The settings from which a network is built."""

    labels: int  # classes, including the background of a segmentation
    encoder: str = "resnet50"  # one of ENCODERS
    channels: int = 3  # of the images
    strides: str = "v1.5"  # or "v1", see EncoderNetwork


class EncoderNetwork(nn.Module, ABC):
    """A network that maps images to a label map of logits; `forward` is `decode` after `encode`.

    Subclasses differ in what follows the encoder: `decoded` and `head`.

    `strides` is the form of ResNet-50 (`ttdg.networks.strides`): "v1" for weights of Caffe and Keras, "v1.5" for those
    of torchvision.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        if spec.encoder not in ENCODERS:
            raise UserError(f"unknown encoder {spec.encoder!r}{suggestion(spec.encoder, ENCODERS)}")
        whole_number("labels of a network", spec.labels)
        whole_number("channels of a network", spec.channels)
        self.spec = spec
        self._build(spec)
        set_strides(self.image_encoder, spec.strides, spec.encoder)

    @abstractmethod
    def _build(self, spec: NetworkSpec) -> None:
        """Create the modules."""

    @property
    @abstractmethod
    def image_encoder(self) -> nn.Module:
        """The module that returns the feature maps."""

    @abstractmethod
    def decoded(self, features: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Maps that follow those of the encoder; the last is the input of `head`."""

    @abstractmethod
    def head(self, decoded: Float[Tensor, "b c y x"]) -> Float[Tensor, "b l h w"]:
        """Logits from the last map of `decoded`."""

    def encode(self, images: Float[Tensor, "b c h w"]) -> tuple[Tensor, ...]:
        """Feature maps at strides 2, 4, 8, 16 and 32; image sides must be multiples of 32."""
        if images.ndim != 4 or images.shape[1] != self.spec.channels or not images.is_floating_point():
            raise UserError(
                f"this network expects normalised images as floats of shape (images, {self.spec.channels}, "
                f"height, width), not {images.dtype} of shape {tuple(images.shape)}"
            )
        return tuple(self.image_encoder(images))

    def decode(self, features: tuple[Tensor, ...]) -> Float[Tensor, "b l h w"]:
        """Logits from the feature maps of `encode`."""
        return self.head(self.decoded(features)[-1])

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b l h w"]:
        """Logits of images of any size. Images are padded to multiples of 32 by repeating the border."""
        h, w = images.shape[-2:]
        return self.decode(self.encode(pad_to_stride(images)))[..., :h, :w]


class Segmenter(EncoderNetwork):
    """A U-Net."""

    def _build(self, spec: NetworkSpec) -> None:
        self.unet = UNet(spec.encoder, spec.channels, spec.labels)

    @property
    def image_encoder(self) -> nn.Module:
        """The encoder of the U-Net."""
        return self.unet.encoder

    def decoded(self, features: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Decoder maps at strides 16, 8, 4, 2 and 1; the last is the input of `head`."""
        return self.unet.decoder(features)

    def head(self, decoded: Float[Tensor, "b c h w"]) -> Float[Tensor, "b l h w"]:
        """Logits from the last decoder map."""
        return self.unet.segmentation_head(decoded)


def pad_to_stride(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c y x"]:
    """Images padded by repeating the border, so that both sides are multiples of the deepest stride."""
    h, w = images.shape[-2:]
    if h % STRIDE == 0 and w % STRIDE == 0:
        return images
    return F.pad(images, (0, -w % STRIDE, 0, -h % STRIDE), mode="replicate")
