"""A source model whose home is a site of bright noise, and images at home and away."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ttdg.adaptation.judge.regressor import Prediction
from ttdg.adaptation.site_learning.home import HomeStatistics, describe
from ttdg.data.transforms import normalise


def unit_batch(seed: int, count: int = 2, light: float = 1.0) -> Tensor:
    return light * torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def quick() -> dict[str, Any]:
    """Options with which the learner is quick."""
    return {"steps": 1, "folder_steps": 4, "draw": 2, "rate": 10.0, "scales": False}


@pytest.fixture
def away() -> Callable[..., Tensor]:
    """`away(seed, count)`: dark images in ImageNet's normalisation; they are not like home."""
    return lambda seed, count=2: normalise(unit_batch(seed, count, light=0.2), "imagenet")


@pytest.fixture
def at_home() -> Callable[..., Tensor]:
    """`at_home(seed, count)`: images like those of the source."""
    return lambda seed, count=2: normalise(unit_batch(seed, count), "imagenet")


@pytest.fixture
def source(ready):
    """The source model with the statistics of drawn home images."""
    source = ready("universe")
    home = HomeStatistics.of([describe(unit_batch(1000, 128))])
    judge = source.parts["judge"]
    tensors = {**judge.tensors, "home.mean": home.mean, "home.deviation": home.deviation}
    return replace(source, parts={**source.parts, "judge": replace(judge, tensors=tensors)})


class Expecting(torch.nn.Module):
    """A regressor that expects the same Dice of the candidates in every image."""

    def __init__(self, *dice: float) -> None:
        super().__init__()
        self.dice = torch.tensor(dice)

    def predict(self, x: Tensor) -> Prediction:
        dice = self.dice.expand(len(x), -1)
        return Prediction(dice, torch.full_like(dice, 0.1), dice.expand(8, -1, -1))


@pytest.fixture
def expecting() -> type[Expecting]:
    """`expecting(0.5, 0.5, 0.5)`: a regressor with which every image keeps the fallback."""
    return Expecting


@pytest.fixture
def both_ways() -> Callable[..., Tensor]:
    """`both_ways(network, images)`: log-probabilities, averaged over the image and its mirror image."""

    def answer(network, images):
        with torch.no_grad():
            upright, mirrored = network(images).softmax(1), network(images.flip(3)).softmax(1)
        return ((upright + mirrored.flip(3)) / 2).log()

    return answer


@pytest.fixture
def judged() -> Callable[..., Tensor]:
    """`judged(source, images)`: log-probabilities of the judge."""
    return lambda source, images: source.adapt("judge")(images).log_softmax(1)


@pytest.fixture
def weights() -> Callable[..., Tensor]:
    """`weights(network)`: all weights and buffers as one vector."""
    return lambda network: torch.cat([value.flatten() for value in network.state_dict().values()])


@pytest.fixture
def same() -> Callable[..., bool]:
    """`same(one, two)`: whether two states have the same tensors, bit for bit."""
    return lambda one, two: (
        one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    )
