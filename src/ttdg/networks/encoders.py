"""Encoders, which return five feature maps at strides 2, 4, 8, 16 and 32.

The ResNets (He et al., CVPR 2016) have the parameter names of torchvision, so that its ImageNet weights fit. The stride
of a bottleneck is in its 3×3 convolution (v1.5); `ttdg.networks.strides` moves it.

The order in which modules are made and initialised decides which random numbers they get. `tests/networks/test_unet.py`
keeps the values that a seed gives.
"""

from collections.abc import Sequence
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

LIGHT = (16, 24, 40, 64, 96)  # channels of the light encoder's maps
WIDTHS = (64, 128, 256, 512)  # width of the convolutions in the four stages of a ResNet


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, added to the shortcut."""

    expansion = 1  # channels of the output as a multiple of the width

    def __init__(self, inputs: int, width: int, stride: int, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d y x"]:
        """The sum of both convolutions and the shortcut, after a ReLU."""
        out = self.act(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.act(out)


class Bottleneck(nn.Module):
    """Convolutions of 1×1, 3×3 and 1×1, added to the shortcut."""

    expansion = 4  # channels of the output as a multiple of the width

    def __init__(self, inputs: int, width: int, stride: int, shortcut: nn.Module | None) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.act = nn.ReLU(inplace=True)
        self.downsample = shortcut

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d y x"]:
        """The sum of the three convolutions and the shortcut, after a ReLU."""
        out = self.act(self.bn1(self.conv1(x)))
        out = self.act(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.act(out)


class ResNetEncoder(nn.Module):
    """A ResNet without its classifier.

    `depths` is the number of blocks in each stage. Convolutions are initialised as by He et al. (ICCV 2015), with the
    fan of their outputs.
    """

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], depths: Sequence[int], channels: int
    ) -> None:
        super().__init__()
        stem, outputs = WIDTHS[0], [width * block.expansion for width in WIDTHS]
        self.widths = (stem, *outputs)  # channels of the five maps
        self.conv1 = nn.Conv2d(channels, stem, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.act = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = _stage(block, stem, WIDTHS[0], depths[0], stride=1)
        self.layer2 = _stage(block, outputs[0], WIDTHS[1], depths[1], stride=2)
        self.layer3 = _stage(block, outputs[1], WIDTHS[2], depths[2], stride=2)
        self.layer4 = _stage(block, outputs[2], WIDTHS[3], depths[3], stride=2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Float[Tensor, "b c h w"]) -> list[Tensor]:
        """Five feature maps, from stride 2 to stride 32."""
        features = [self.act(self.bn1(self.conv1(images)))]
        x = self.maxpool(features[0])
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            features.append(x)
        return features


class LightEncoder(nn.Module):
    """Ten 3×3 convolutions with 0.2 M parameters, for the demo and for tests on a CPU."""

    widths = LIGHT

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(*_conv_norm(a, b, stride=2), *_conv_norm(b, b, stride=1))
            for a, b in pairwise((channels, *LIGHT))
        )

    def forward(self, images: Float[Tensor, "b c h w"]) -> list[Tensor]:
        """Five feature maps, from stride 2 to stride 32."""
        features, x = [], images
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


def build_encoder(name: str, channels: int) -> ResNetEncoder | LightEncoder:
    """Return the encoder called `name` for images with `channels` channels; its `widths` are those of its maps."""
    match name:
        case "light":
            return LightEncoder(channels)
        case "resnet18":
            return ResNetEncoder(BasicBlock, (2, 2, 2, 2), channels)
        case "resnet34":
            return ResNetEncoder(BasicBlock, (3, 4, 6, 3), channels)
        case "resnet50":
            return ResNetEncoder(Bottleneck, (3, 4, 6, 3), channels)
    raise ValueError(f"there is no encoder {name!r}")


def _stage(
    block: type[BasicBlock] | type[Bottleneck], inputs: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    """The blocks of a stage.

    The first has the stride, and a 1×1 convolution as shortcut if shapes change. The shortcut is made before the block.
    """
    outputs = width * block.expansion
    shortcut = None
    if stride != 1 or inputs != outputs:
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    first = block(inputs, width, stride, shortcut)
    return nn.Sequential(first, *(block(outputs, width, 1, None) for _ in range(1, depth)))


def _conv_norm(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    """A 3×3 convolution, BatchNorm and ReLU."""
    return (
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )
