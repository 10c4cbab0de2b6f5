"""Encoders for MONAI's FlexibleUNet, which return five feature maps at strides 2, 4, 8, 16 and 32.

MONAI's resnet18 and resnet34 use zero-padded shortcuts, so torchvision weights do not fit them and `torch.export`
fails. The encoders here use 1×1-convolution shortcuts and the parameter names of torchvision.
"""

from itertools import pairwise
from typing import Any

from monai.networks.blocks import BaseEncoder
from monai.networks.nets.flexible_unet import FLEXUNET_BACKBONE
from monai.networks.nets.resnet import ResNet, ResNetBlock, ResNetBottleneck
from torch import Tensor, nn

RESNETS: dict[str, tuple[Any, list[int], int]] = {
    "resnet18": (ResNetBlock, [2, 2, 2, 2], 1),
    "resnet34": (ResNetBlock, [3, 4, 6, 3], 1),
    "resnet50": (ResNetBottleneck, [3, 4, 6, 3], 4),
}
LIGHT = (16, 24, 40, 64, 96)  # channels of the light encoder's maps
DECODERS = {"light": (64, 40, 24, 16, 16)}  # decoder channels; other encoders use MONAI's default


class ResNetEncoder2d(ResNet, BaseEncoder):
    """A ResNet with torchvision's parameter names that returns the feature pyramid."""

    def __init__(self, name: str, spatial_dims: int, in_channels: int, pretrained: bool) -> None:
        block, layers, _ = RESNETS[name]
        super().__init__(
            block, layers, [64, 128, 256, 512], spatial_dims, in_channels,
            conv1_t_stride=2, shortcut_type="B", feed_forward=False, bias_downsample=False,
        )  # fmt: skip

    def forward(self, images: Tensor) -> list[Tensor]:
        """Five feature maps, from stride 2 to stride 32."""
        features = [self.act(self.bn1(self.conv1(images)))]
        x = self.maxpool(features[0])
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            features.append(x)
        return features

    @classmethod
    def get_encoder_parameters(cls) -> list[dict[str, Any]]:
        """Constructor arguments of each encoder, as MONAI's registry requires."""
        return [{"name": name, "spatial_dims": 2, "in_channels": 3, "pretrained": False} for name in RESNETS]

    @classmethod
    def num_channels_per_output(cls) -> list[tuple[int, ...]]:
        """Channels of the five maps of each encoder."""
        return [(64, *(width * e for width in (64, 128, 256, 512))) for _, _, e in RESNETS.values()]

    @classmethod
    def num_outputs(cls) -> list[int]:
        """Number of maps of each encoder."""
        return [5] * len(RESNETS)

    @classmethod
    def get_encoder_names(cls) -> list[str]:
        """Names under which MONAI registers the encoders."""
        return [f"ttdg-{name}" for name in RESNETS]


class LightEncoder(nn.Module, BaseEncoder):
    """Ten 3×3 convolutions with 0.2 M parameters, for the demo and for tests on a CPU."""

    def __init__(self, spatial_dims: int, in_channels: int, pretrained: bool) -> None:
        super().__init__()
        widths = (in_channels, *LIGHT)
        self.stages = nn.ModuleList(
            nn.Sequential(*conv_norm(a, b, stride=2), *conv_norm(b, b, stride=1)) for a, b in pairwise(widths)
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        """Five feature maps, from stride 2 to stride 32."""
        features, x = [], images
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features

    @classmethod
    def get_encoder_parameters(cls) -> list[dict[str, Any]]:
        """Constructor arguments of each encoder, as MONAI's registry requires."""
        return [{"spatial_dims": 2, "in_channels": 3, "pretrained": False}]

    @classmethod
    def num_channels_per_output(cls) -> list[tuple[int, ...]]:
        """Channels of the five maps of each encoder."""
        return [LIGHT]

    @classmethod
    def num_outputs(cls) -> list[int]:
        """Number of maps of each encoder."""
        return [5]

    @classmethod
    def get_encoder_names(cls) -> list[str]:
        """Names under which MONAI registers the encoders."""
        return ["ttdg-light"]


def build_encoder(name: str, channels: int) -> tuple[nn.Module, int]:
    """Return an encoder for images with `channels` channels, and the number of channels of its deepest map."""
    kind: Any = ResNetEncoder2d if name in RESNETS else LightEncoder
    row = kind.get_encoder_names().index(f"ttdg-{name}")
    settings = {**kind.get_encoder_parameters()[row], "in_channels": channels}
    return kind(**settings), kind.num_channels_per_output()[row][-1]


def conv_norm(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    """A 3×3 convolution, BatchNorm and ReLU."""
    return (
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


for encoder in (ResNetEncoder2d, LightEncoder):
    FLEXUNET_BACKBONE.register_class(encoder)
