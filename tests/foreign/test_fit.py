"""`ttdg.fit` makes the parts of `judge` and `universe` for networks from outside the project."""

import copy
import warnings

import pytest
import torch
from monai.networks.nets import SegResNet, UNet
from torch import Tensor, nn
from torch.nn import functional as F

import ttdg
from ttdg.adaptation import SelfAssessing, SiteLearner
from ttdg.data import normalise
from ttdg.errors import UserError
from ttdg.foreign.source_images import labels_of_channels, network_input

SIDE = 32
SHORT = {
    "steps": 1,
    "hospitals": 1,
    "draws": 1,
    "mixing_steps": 1,
    "learning_steps": 1,
    "folder_steps": 2,
    "learning_draw": 2,
}


class PlainUNet(nn.Module):
    """A U-Net of two levels in plain torch, with any normalisation or none."""

    def __init__(self, channels: int = 3, outputs: int = 3, norm: type[nn.Module] | None = None) -> None:
        super().__init__()

        def block(inputs: int, width: int) -> nn.Sequential:
            layers = [
                nn.Conv2d(inputs, width, 3, padding=1),
                norm(width) if norm else nn.Identity(),
                nn.ReLU(),
            ]
            return nn.Sequential(*layers)

        self.down, self.deep, self.up = block(channels, 6), block(6, 8), block(14, 6)
        self.last = nn.Conv2d(6, outputs, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.down(images)
        deep = self.deep(F.max_pool2d(fine, 4))
        return self.last(self.up(torch.cat([fine, F.interpolate(deep, scale_factor=4.0)], 1)))


class InDict(PlainUNet):
    """Returns a dict, as networks of torchvision do."""

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        logits = super().forward(images)
        return {"aux": logits[..., ::2, ::2], "out": logits}


class InTuple(PlainUNet):
    """Returns a tuple, as networks with deep supervision do."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits = super().forward(images)
        return logits[..., ::2, ::2], logits


def monai_unet() -> nn.Module:
    return UNet(2, 1, 3, (4, 8, 8), (2, 2))


def monai_segresnet() -> nn.Module:
    return SegResNet(2, 8, 3, 3, blocks_down=(1, 1), blocks_up=(1,))


def in_dict() -> nn.Module:
    return InDict(norm=nn.BatchNorm2d)


def in_tuple() -> nn.Module:
    return InTuple(outputs=2)


# name → network, channels of its images, and what `ttdg.fit` must be told
NETWORKS = {
    "MONAI UNet": (monai_unet, 1, {"activation": "softmax"}),
    "MONAI SegResNet": (monai_segresnet, 3, {"activation": "softmax"}),
    "plain U-Net without BatchNorm": (PlainUNet, 3, {"activation": "softmax", "taps": ("deep", "up.0")}),
    "dict output with BatchNorm": (in_dict, 3, {"activation": "softmax", "output": "out"}),
    "tuple output with a sigmoid head": (in_tuple, 3, {"activation": "sigmoid", "output": 1}),
}


def rings(count: int, channels: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Grey discs with a bright core in noise; labels 0, 1 (rim) and 2 (core)."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    cy, cx = 10 + 12 * torch.rand(2, count, 1, 1, generator=generator)
    distance = (y - cy) ** 2 + (x - cx) ** 2
    labels = (distance < 64).long() + (distance < 16).long()
    noise = 0.05 * torch.randn(count, channels, SIDE, SIDE, generator=generator)
    return (0.2 + 0.3 * labels[:, None] + noise).clamp(0, 1), labels


def channel_masks(labels: Tensor) -> Tensor:
    """The masks of a sigmoid head: the whole disc, and its core."""
    return torch.stack([labels > 0, labels > 1], 1).long()


def made(name):
    """The network, images for it, masks, and the arguments of `fit`."""
    make, channels, said = NETWORKS[name]
    torch.manual_seed(0)
    images, labels = rings(10, channels)
    masks = channel_masks(labels) if said["activation"] == "sigmoid" else labels
    return make().eval(), images, masks, said


@pytest.fixture(scope="module")
def fitted():
    """Each network with its images and parts, fitted once."""
    known = {}

    def of(name):
        if name not in known:
            network, images, masks, said = made(name)
            known[name] = network, images, ttdg.fit(network, images, masks, **said, **SHORT)
        return known[name]

    return of


@pytest.mark.parametrize("name", NETWORKS)
def test_universe_and_judge_run_on_a_network_without_encode_and_decode(name, fitted):
    network, images, parts = fitted(name)
    before = copy.deepcopy(network.state_dict())
    expected = network(images[:4])
    expected = expected[NETWORKS[name][2]["output"]] if not isinstance(expected, torch.Tensor) else expected
    for method in ("judge", "universe"):
        adapter = ttdg.adapt(network, method, parts=parts)
        answer = adapter(2 * images[:4])
        assert answer.shape == expected.shape
        assert answer.isfinite().all()
        assert isinstance(adapter, SelfAssessing)
        assert len(adapter.assessment().dice) == 4
    assert isinstance(adapter, SiteLearner)
    adapter.learn([2 * images[:4]])
    assert adapter.predict_frozen(images[:2]).isfinite().all()
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize("name", ["plain U-Net without BatchNorm", "tuple output with a sigmoid head"])
def test_before_anything_is_learned_the_fallback_is_the_networks_own_answer_over_both_mirror_images(
    name, fitted
):
    network, images, parts = fitted(name)
    answer = ttdg.adapt(network, "judge", parts=parts, always="source, both ways")(images[:3])
    with torch.no_grad():
        both = [network(images[:3]), network(images[:3].flip(3))]
    here, there = (logits if isinstance(logits, torch.Tensor) else logits[1] for logits in both)
    if NETWORKS[name][2]["activation"] == "softmax":
        mean = (here.softmax(1) + there.softmax(1).flip(3)) / 2
        assert torch.allclose(answer.softmax(1), mean, atol=1e-4)
    else:  # the core is never outside the disc, and given this the channels are independent

        def nested(logits):
            disc, core = logits.unbind(1)
            weights = torch.stack([torch.zeros_like(disc), disc, disc + core]).exp()
            return torch.stack([weights[1] + weights[2], weights[2]], 1) / weights.sum(0)[:, None]

        mean = (nested(here) + nested(there).flip(3)) / 2
        assert torch.allclose(answer.sigmoid(), mean, atol=1e-4)


def test_parts_that_were_saved_give_the_same_answers_and_fit_no_other_weights(fitted, tmp_path):
    from ttdg.foreign import save_parts

    network, images, parts = fitted("dict output with BatchNorm")
    save_parts(tmp_path / "parts", parts, network)
    there = ttdg.adapt(network, "universe", parts=tmp_path / "parts")(images[:2])
    assert torch.equal(there, ttdg.adapt(network, "universe", parts=parts)(images[:2]))
    other = copy.deepcopy(network)
    with torch.no_grad():
        other.last.bias += 1
    with pytest.raises(UserError, match="was fitted for other weights"):
        ttdg.adapt(other, "universe", parts=tmp_path / "parts")
    with pytest.raises(UserError, match="holds no parts"):
        ttdg.adapt(network, "universe", parts=tmp_path)
    with pytest.raises(UserError, match="were fitted with output 'out', not 'aux'"):
        ttdg.adapt(network, "universe", parts=parts, output="aux")


def test_two_or_more_channels_without_an_activation_are_asked_about():
    network, images, masks, _ = made("plain U-Net without BatchNorm")
    with pytest.raises(UserError, match="3 output channels, and nothing says"):
        ttdg.fit(network, images, masks)
    with pytest.raises(UserError, match="independent structures"):
        ttdg.adapt(network, "self-training")(images)
    for method in ("source", "self-training"):
        assert (
            ttdg.adapt(network, method, activation="sigmoid", **({"draw": 2} if method != "source" else {}))(
                images[:2]
            )
            .isfinite()
            .all()
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"masks": lambda m: m + 1}, "whole numbers from 0, the background, to 2"),
        ({"masks": lambda m: m[:5]}, "do not belong to images"),
        ({"masks": lambda m: m.float()}, "whole numbers"),
        ({"activation": "sigmoid", "masks": lambda m: channel_masks(m)}, "0 and 1 for each of them"),
        ({"images": lambda x: x[:, None]}, "slices of volumes as images"),
        ({"images": lambda x: x / 0}, "finite"),
        ({"taps": ("dconv",)}, "no module 'dconv'"),
        ({"output": "out"}, "has no output 'out'"),
    ],
)
def test_what_cannot_be_fitted_is_said_in_a_sentence(change, message):
    network, images, masks, _ = made("plain U-Net without BatchNorm")
    given = {"activation": "softmax", **SHORT}
    given |= {name: value for name, value in change.items() if name not in ("images", "masks")}
    images, masks = (change.get(name, lambda x: x)(x) for name, x in (("images", images), ("masks", masks)))
    with pytest.raises(UserError, match=message):
        ttdg.fit(network, images, masks, **given)


def test_an_output_that_is_no_tensor_is_asked_about_with_its_keys():
    network, images, masks, _ = made("dict output with BatchNorm")
    with pytest.raises(UserError, match="dict with the keys 'aux', 'out', not a tensor"):
        ttdg.fit(network, images, masks, activation="softmax")
    with pytest.raises(UserError, match="dict with the keys 'aux', 'out', not a tensor"):
        ttdg.adapt(network, "norm")(images)
    assert ttdg.adapt(network, "tent", output="out", activation="softmax")(images).shape == (10, 3, 32, 32)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("how", ["minmax", "zscore", "imagenet", "as they are", "signed"])
def test_images_are_restored_from_bytes_as_the_network_receives_them(channels, how):
    if how == "imagenet" and channels == 1:
        pytest.skip("ImageNet's statistics are of three channels")
    unit = rings(4, channels)[0]
    images = {"as they are": unit, "signed": 2 * unit - 1}.get(how)
    images = normalise(unit, how) if images is None else images
    rule, pixels = network_input(images)
    assert pixels.shape == (4, 3, 32, 32)
    assert torch.allclose(normalise(pixels.float() / 255, rule), images, atol=0.05)


def test_structures_that_overlap_become_labels_and_every_channel_keeps_its_pixels():
    masks = channel_masks(rings(5)[1])
    labels, sets = labels_of_channels(masks, 2)
    assert sets == ((), (0,), (0, 1))
    for k in range(2):
        holds = torch.tensor([k in channels for channels in sets])
        assert torch.equal(holds[labels].long(), masks[:, k])
    with pytest.raises(UserError, match="no mask holds the structure of channel 1"):
        labels_of_channels(torch.stack([masks[:, 0], 0 * masks[:, 0]], 1), 2)


def test_a_network_in_float16_is_fitted_and_adapted_in_float32():
    network, images, masks, said = made("MONAI UNet")
    parts = ttdg.fit(network.half(), images, masks, **said, **SHORT)
    adapter = ttdg.adapt(network, "universe", parts=parts)
    assert adapter(images[:2].half()).dtype == torch.float32
    assert next(network.parameters()).dtype == torch.float16


def test_a_judge_of_a_network_without_batchnorm_has_only_the_readings_that_differ(fitted):
    parts = fitted("MONAI UNet")[2]
    assert parts["judge"].settings["readings"] == "two"
    assert not any(name.startswith("statistics") for name in parts["judge"].settings["signals"]["all"])
    assert fitted("dict output with BatchNorm")[2]["judge"].settings["readings"] == "four"


def test_batchnorm_without_scale_and_shift_can_be_judged():
    torch.manual_seed(0)
    network = PlainUNet(norm=lambda width: nn.BatchNorm2d(width, affine=False)).eval()
    images, masks = rings(10)
    parts = ttdg.fit(network, images, masks, activation="softmax", **SHORT)
    assert ttdg.adapt(network, "judge", parts=parts)(images[:4]).isfinite().all()


class Tokens(nn.Module):
    """An encoder and a decoder, with BatchNorm over the cells of the deepest map."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 2, 2)
        self.planes, self.cells, self.last = nn.BatchNorm2d(6), nn.BatchNorm1d(8), nn.Conv2d(14, 3, 1)

    def encode(self, images):
        first = self.planes(self.first(images)).relu()
        second = self.second(first)
        return first, self.cells(second.flatten(2)).view_as(second)

    def decode(self, features):
        return self.last(torch.cat([features[0], nn.functional.interpolate(features[1], scale_factor=2)], 1))

    def forward(self, images):
        return self.decode(self.encode(images))


@pytest.mark.parametrize("name", ["judge", "universe-gradient", "universe-literal"])
def test_methods_with_parts_run_on_a_network_with_batchnorm_over_cells(name, labelled, short):
    torch.manual_seed(0)
    source, (images, masks) = Tokens().eval(), labelled
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a network that was not trained
        parts = ttdg.fit(source, images, masks, activation="softmax", **short)
    assert torch.equal(torch.get_rng_state(), state)
    answer = ttdg.adapt(source, name, parts=parts)(images[:2])
    assert answer.shape == (2, 3, 32, 32)
    assert answer.isfinite().all()
