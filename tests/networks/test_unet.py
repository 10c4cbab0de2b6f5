"""The U-Net beside MONAI's FlexibleUNet with MONAI's ResNets; only the light encoder is ours in both."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from monai.networks.blocks import BaseEncoder
from monai.networks.nets.flexible_unet import FLEXUNET_BACKBONE, FlexibleUNet
from monai.networks.nets.resnet import ResNet, ResNetBlock, ResNetBottleneck
from safetensors.torch import save_file
from torch import nn

import ttdg
from ttdg.networks import ENCODERS, NetworkSpec, Segmenter, load_encoder
from ttdg.networks.encoders import LightEncoder, build_encoder
from ttdg.networks.unet import UNet

RESNETS = {
    "resnet18": (ResNetBlock, (2, 2, 2, 2), (64, 64, 128, 256, 512)),
    "resnet34": (ResNetBlock, (3, 4, 6, 3), (64, 64, 128, 256, 512)),
    "resnet50": (ResNetBottleneck, (3, 4, 6, 3), (64, 256, 512, 1024, 2048)),
}


class Registered(BaseEncoder):
    """What MONAI's registry asks of an encoder, with one name for each class."""

    @classmethod
    def get_encoder_parameters(cls):
        return [{"spatial_dims": 2, "in_channels": 3, "pretrained": False}]

    @classmethod
    def num_channels_per_output(cls):
        return [cls.widths]

    @classmethod
    def num_outputs(cls):
        return [5]

    @classmethod
    def get_encoder_names(cls):
        return [cls.__name__]


class MonaiResNet(ResNet):
    """MONAI's ResNet with 1×1 convolutions as shortcuts; it returns the maps before the pooling and after stages."""

    def __init__(self, spatial_dims, in_channels, pretrained):
        super().__init__(
            self.block, list(self.depths), [64, 128, 256, 512], spatial_dims, in_channels,
            conv1_t_stride=2, shortcut_type="B", feed_forward=False, bias_downsample=False,
        )  # fmt: skip

    def forward(self, images):
        maps = [self.act(self.bn1(self.conv1(images)))]
        x = self.maxpool(maps[0])
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            maps.append(x)
        return maps


class OracleLight(LightEncoder, Registered):
    def __init__(self, spatial_dims, in_channels, pretrained):
        super().__init__(in_channels)


def monai_encoder(name):
    """A class that MONAI's registry accepts."""
    if name == "light":
        return OracleLight
    block, depths, widths = RESNETS[name]
    parts = {"block": block, "depths": depths, "widths": widths}
    return type(f"Oracle{name}", (MonaiResNet, Registered), parts)


ORACLES = {name: monai_encoder(name) for name in ENCODERS}
for oracle in ORACLES.values():
    FLEXUNET_BACKBONE.register_class(oracle)


def monai_unet(name, channels, labels):
    widths = (64, 40, 24, 16, 16) if name == "light" else (256, 128, 64, 32, 16)
    torch.manual_seed(0)
    return FlexibleUNet(
        channels, labels, ORACLES[name].__name__, decoder_channels=widths, spatial_dims=2, is_pad=False
    )


def unet(name, channels=3, labels=2):
    torch.manual_seed(0)
    return UNet(name, channels, labels)


def with_other_values(network):
    """The network with random statistics and affine parameters in BatchNorm."""
    torch.manual_seed(1)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias)
    return network


def test_no_module_of_the_package_imports_monai():
    files = list(Path(ttdg.__file__).parent.rglob("*.py"))
    assert len(files) > 100
    assert not [f for f in files if re.search(r"^\s*(import|from) monai\b", f.read_text(), re.MULTILINE)]


def same(ours, other):
    """True if two state dicts have the same names, in the same order, and the same values."""
    return list(ours) == list(other) and all(torch.equal(ours[name], other[name]) for name in ours)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_seed_gives_the_names_and_values_of_monais_network(name):
    channels, labels = (1, 4) if name in ("light", "resnet18") else (3, 2)
    ours, next_of_ours = unet(name, channels, labels), torch.rand(4)
    other, next_of_other = monai_unet(name, channels, labels), torch.rand(4)
    assert same(ours.state_dict(), other.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in other.named_parameters()]
    assert torch.equal(next_of_ours, next_of_other), "as many random numbers were drawn"


@pytest.mark.parametrize("name", ENCODERS)
def test_weights_load_both_ways_and_give_the_same_logits(name):
    ours, other = unet(name), monai_unet(name, 3, 2)
    images = torch.randn(2, 3, 32, 64)
    with torch.no_grad():
        other.load_state_dict(with_other_values(ours).state_dict())
        logits = ours.eval()(images)
        assert torch.equal(logits, other.eval()(images))
        again = unet(name).eval()
        assert not torch.allclose(again(images), logits)
        again.load_state_dict(other.state_dict())
        assert torch.equal(again(images), logits)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_training_step_gives_the_same_gradients_and_statistics(name):
    networks = unet(name), monai_unet(name, 3, 2)
    images = torch.randn(2, 3, 64, 64)
    target = torch.rand(2, 2, 64, 64)
    losses = [F.mse_loss(network.train()(images), target) for network in networks]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    ours, other = ({n: p.grad for n, p in network.named_parameters()} for network in networks)
    assert all(value.abs().sum() > 0 for n, value in ours.items() if n.endswith("weight"))
    for n, value in ours.items():
        torch.testing.assert_close(value, other[n], rtol=1e-4, atol=1e-5 * float(value.abs().max()))
    assert same(dict(networks[0].named_buffers()), dict(networks[1].named_buffers()))


@pytest.mark.parametrize("name", ENCODERS)
def test_the_maps_of_the_encoder_have_the_channels_that_it_states(name):
    encoder = build_encoder(name, 3)
    assert tuple(m.shape[1] for m in encoder(torch.randn(2, 3, 64, 64))) == tuple(encoder.widths)


def test_an_encoder_without_a_form_is_refused():
    with pytest.raises(ValueError, match="no encoder 'resnet101'"):
        build_encoder("resnet101", 3)


@pytest.mark.parametrize("name", ["light", "resnet18"])
def test_every_map_keeps_the_precision_of_autocast(name):
    network = unet(name)
    kinds = []
    for module in network.modules():
        if not list(module.children()):
            module.register_forward_hook(
                lambda _, inputs, output: kinds.append((inputs[0].dtype, output.dtype))
            )
    with torch.autocast("cpu", torch.bfloat16):
        network(torch.randn(1, 3, 64, 64))
    before, after = kinds[0], kinds[1:]
    assert before == (torch.float32, torch.bfloat16)
    assert set(after) == {(torch.bfloat16, torch.bfloat16)}


@pytest.mark.parametrize("name", RESNETS)
def test_imagenet_weights_with_torchvisions_names_fit(name, tmp_path):
    bottleneck = name == "resnet50"
    state = {"fc.weight": torch.zeros(1000, 2048 if bottleneck else 512), "fc.bias": torch.zeros(1000)}
    state |= {f"{n}.weight": torch.randn(shape) for n, shape in convolutions(name)}
    for n, shape in convolutions(name):
        norm = n.replace("conv", "bn").replace("downsample.0", "downsample.1")
        state |= {
            f"{norm}.{part}": torch.rand(shape[0])
            for part in ("weight", "bias", "running_mean", "running_var")
        }
    save_file(state, tmp_path / "weights.safetensors")
    network = Segmenter(NetworkSpec(labels=2, encoder=name))
    load_encoder(network, tmp_path / "weights.safetensors")
    loaded = network.image_encoder.state_dict()
    assert {n for n in loaded if not n.endswith("num_batches_tracked")} == state.keys() - {
        "fc.weight",
        "fc.bias",
    }
    assert all(torch.equal(state[n], value) for n, value in loaded.items() if n in state)


def convolutions(name):
    """Names and shapes of the convolutions in torchvision's ResNets, by its rules."""
    depths = RESNETS[name][1]
    yield "conv1", (64, 3, 7, 7)
    inputs = 64
    for stage, (depth, width) in enumerate(zip(depths, (64, 128, 256, 512), strict=True), start=1):
        outputs = 4 * width if name == "resnet50" else width
        for block in range(depth):
            at = f"layer{stage}.{block}"
            if name == "resnet50":
                yield f"{at}.conv1", (width, inputs, 1, 1)
                yield f"{at}.conv2", (width, width, 3, 3)
                yield f"{at}.conv3", (outputs, width, 1, 1)
            else:
                yield f"{at}.conv1", (width, inputs, 3, 3)
                yield f"{at}.conv2", (width, width, 3, 3)
            if inputs != outputs:
                yield f"{at}.downsample.0", (outputs, inputs, 1, 1)
            inputs = outputs
