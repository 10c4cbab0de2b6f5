"""Small source models for the tests of methods: a network of the right kind, and the parts that the method needs.

The contract test covers a method with `parts` once each of them has a maker in `PART_MAKERS`.
"""

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.adaptation import METHODS, adapt
from ttdg.adaptation.universe.fit import fit_judges
from ttdg.data import Arrays, Benchmark, Exact
from ttdg.networks import NetworkSpec, Segmenter, level_channels
from ttdg.networks import pyramid as levels
from ttdg.networks.heads.consistency import ElementWiseNet
from ttdg.networks.heads.denoiser import Denoiser
from ttdg.networks.heads.noise import NoiseDiscriminator
from ttdg.networks.heads.shapes import ShapeHead, clip_atom_norms
from ttdg.prior import MorphologyPrior, prior_for
from ttdg.types import Part


def pyramid(network: nn.Module) -> list[int]:
    return [level.shape[1] for _, level in levels.level_modules(network)]


def a_denoiser(network: nn.Module) -> Part:
    channels = levels.noise_image(network).shape[1]
    return Denoiser(pyramid(network), channels).to_part([0.0] * channels, [1.0] * channels)


def a_discriminator(network: nn.Module) -> Part:
    level = min(2, len(channels := pyramid(network)) - 1)
    return NoiseDiscriminator(channels[level], channels[level]).to_part(level)


def a_shape_head(network: nn.Module) -> Part:
    labels = network(levels.noise_image(network)).shape[1]
    structures, head = (labels - 1, "softmax") if labels > 1 else (1, "sigmoid")
    made = ShapeHead(pyramid(network)[-1], labels, structures, 4)
    made.atoms.copy_(
        torch.stack([clip_atom_norms(torch.rand(made.atoms.shape[1:])) for _ in range(structures)])
    )
    return made.to_part(head)


def a_consistency(network: nn.Module) -> Part:
    made = ElementWiseNet((pyramid(network)[-1],), 10)
    made.weight.data.mul_(
        4.0
    )  # ×4¹⁰ in ten layers: another style changes the features of an untrained network by 1e-6
    return made.to_part()


def a_prior(network: nn.Module) -> Part:
    return prior_for(
        level_channels(network), network.spec.labels, node_dim=16, points=8, per_tissue=6
    ).to_part()


def a_judge(network: nn.Module) -> Part:
    return judge_of(network.spec.labels)


@cache
def judge_of(labels: int) -> Part:
    """A judge fitted for one step on noise; it depends on the number of labels, not on the network's channels."""
    torch.manual_seed(labels)
    network = Segmenter(NetworkSpec(labels, "light"))
    names = ("background", *(f"structure {i}" for i in range(1, labels)))
    regions = {names[i]: (i,) for i in range(1, labels)}
    benchmark = Benchmark("noise", names, Exact({i: i for i in range(labels)}), regions, "minmax", 32)
    masks = torch.randint(labels, (4, 32, 32)).to(torch.uint8)
    arrays = Arrays(torch.randint(256, (4, 3, 32, 32)).to(torch.uint8), masks, tuple("abcd"))
    judge = fit_judges(
        network, MorphologyPrior.from_part(a_prior(network)), {"site": arrays}, {"site": arrays}, benchmark,
        draws=1, controls=True, mixing_steps=1, hospitals=2, learning_steps=2, learning_draw=16, folder_steps=30,
    )  # fmt: skip
    settings = {name: value for name, value in judge.settings.items() if name != "prior"}
    settings["learning"] = {**settings["learning"], "anatomy": "steady"}  # labels of noise are thin
    return Part(judge.tensors, settings)


PART_MAKERS: dict[str, Callable[[nn.Module], Part]] = {  # with random weights
    "deynet": a_denoiser,
    "nc-ttt": a_discriminator,
    "tasd-r": a_shape_head,
    "itta": a_consistency,
    "prior": a_prior,
    "judge": a_judge,
}


def shifted_statistics(network: nn.Module) -> nn.Module:
    """Randomise the running statistics and γ, so that source and batch statistics differ."""
    for layer in network.modules():
        if isinstance(layer, _BatchNorm):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 1.5)
    return network


def plain_network(
    channels: int = 3, labels: int = 2, norm: Callable[[int], nn.Module] = nn.BatchNorm2d
) -> nn.Module:
    """A network without `encode` and `decode`."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), norm(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), norm(8), nn.ReLU(), nn.Conv2d(8, labels, 1),
    )  # fmt: skip


class TinyUNet(nn.Module):
    """A U-Net of three levels with `encode` and `decode`; its stages have names of a ResNet."""

    def __init__(
        self, channels: int = 3, labels: int = 2, norm: Callable[[int], nn.Module] = nn.BatchNorm2d
    ) -> None:
        super().__init__()

        def stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), norm(outputs), nn.ReLU())

        self.layer0, self.layer1, self.layer4 = stage(channels, 6, 2), stage(6, 8, 2), stage(8, 12, 2)
        self.up1, self.up0, self.head = stage(20, 8, 1), stage(14, 6, 1), nn.Conv2d(6, labels, 1)

    def encode(self, images: Tensor) -> tuple[Tensor, ...]:
        a = self.layer0(images)
        b = self.layer1(a)
        return a, b, self.layer4(b)

    def decode(self, features: tuple[Tensor, ...]) -> Tensor:
        a, b, c = features
        x = self.up1(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        x = self.up0(torch.cat([F.interpolate(x, scale_factor=2), a], 1))
        return self.head(F.interpolate(x, scale_factor=2))

    def forward(self, images: Tensor) -> Tensor:
        h, w = images.shape[-2:]
        padded = F.pad(images, (0, -w % 32, 0, -h % 32), mode="replicate")
        return self.decode(self.encode(padded))[..., :h, :w]


# Options with which a method does the same work on fewer steps, images or samples. `make test-thorough` uses none.
FEWER = {
    "cbmt": {"steps": 1, "draw": 4},
    "cpr": {"steps": 1, "draw": 4, "samples": 2},
    "dpl": {"steps": 1, "draw": 4, "samples": 2},
    "nc-ttt": {"steps": 2},
    "self-training": {"steps": 1, "draw": 4},
    "tegda": {"samples": 3},
    "universe": {"steps": 2, "draw": 4, "first": 0.1},  # the second batch reaches the second phase
    "upl-sfda": {"steps": 1, "draw": 4},
}
QUICK = {} if os.environ.get("TTDG_TESTS") == "thorough" else FEWER


@dataclass(frozen=True)
class Ready:
    """A source network and its parts, with the interface of a loaded checkpoint."""

    network: nn.Module
    parts: Mapping[str, Part] = field(default_factory=dict)

    def adapt(self, method: str, **options: Any) -> Any:
        return adapt(self, method, **options)

    def quick(self, method: str, **options: Any) -> Any:
        """An adapter with default options, except for a method that takes many steps."""
        return adapt(self, method, **{**QUICK.get(method, {}), **options})


@cache
def build_once(name: str, channels: int, labels: int) -> tuple[Ready, Tensor]:
    """The source model for a method, and the state of torch's random generator after it was built."""
    method = METHODS[name]
    torch.manual_seed(0)
    if method.parts:
        network: nn.Module = Segmenter(NetworkSpec(labels, "light", channels))
    elif "encode/decode" in method.needs:
        network = TinyUNet(channels, labels)
    else:
        network = plain_network(channels, labels)
    shifted_statistics(network).eval()
    source = Ready(network, {part: PART_MAKERS[part](network) for part in method.parts})
    return source, torch.get_rng_state()


def build(name: str, channels: int = 3, labels: int = 2) -> Ready:
    """Return a copy of the source model for a method: a U-Net with parts, a network in two halves, or any network."""
    missing = [part for part in METHODS[name].parts if part not in PART_MAKERS]
    if missing:
        pytest.skip(f"no maker of the part {missing[0]!r} in tests/adaptation/conftest.py")
    source, state = build_once(name, channels, labels)
    torch.set_rng_state(state)  # tests draw the same numbers, however often the model was built before
    return copy.deepcopy(source)


@pytest.fixture(scope="session")
def ready() -> Callable[..., Ready]:
    """`ready(name, channels, labels)` returns a source model for the method."""
    return build
