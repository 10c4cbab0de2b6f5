"""The label stage of DPL and CPR: repeated predictions of the source network, their spread, and class prototypes."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.adaptation.adapter import Images
from ttdg.adaptation.site_learning.image_memory import ImageMemory
from ttdg.adaptation.views import View
from ttdg.data.transforms import normalise
from ttdg.networks.segmenter import pad_to_stride

FLIPS = View(), View(0, True), View(2, True), View(2)
MILD = 0.2  # largest |log gamma| of a view
TEMPERATURE = 2.0  # of the probabilities whose spread is the uncertainty
LEAST_SUPPORT = 50  # sure cells of a structure, for a prototype to be used

Maps = Float[Tensor, "b k h w"]
Cells = Float[Tensor, "b f y x"]
Look = Callable[[Images], tuple[Maps, Cells]]  # logits of the structures, and a feature map


class Opinion(NamedTuple):
    """What repeated predictions say about a batch."""

    mean: Maps  # probability p̄
    spread: Maps  # standard deviation u of the probabilities at temperature 2
    features: Cells  # mean feature map


def logits_and_cells(network: Any, images: Images, stride: int) -> tuple[Float[Tensor, "b l h w"], Cells]:
    """Logits and the feature map nearest to a stride, from one forward pass.

    The map is one of the decoder, which joins fine and deep features, if the network has `decoded` and `head`. Else it
    is one of the encoder, joined with the deepest one. It is cropped to the images if they had to be padded.
    """
    h, w = images.shape[-2:]
    padded = pad_to_stride(images)
    encoded = tuple(network.encode(padded))

    def distance(cells: Cells) -> float:
        return abs(math.log(padded.shape[-2] / cells.shape[-2] / stride))

    if hasattr(network, "decoded"):
        decoded = network.decoded(encoded)
        logits, cells = network.head(decoded[-1]), min(decoded, key=distance)
    else:
        logits, cells = network.decode(encoded), min(encoded, key=distance)
        deepest = F.interpolate(encoded[-1], size=cells.shape[-2:], mode="bilinear")
        cells = torch.cat([cells, deepest], 1)
    rows, columns = (
        math.ceil(side * cells.shape[axis] / padded.shape[axis]) for side, axis in ((h, -2), (w, -1))
    )
    return logits[..., :h, :w], cells[..., :rows, :columns]


def mild_views(count: int) -> list[tuple[View, float]]:
    """Flips, each with several gammas between exp(−0.2) and exp(0.2); the first views have a gamma of 1."""
    levels = math.ceil(count / len(FLIPS))
    logs = torch.linspace(-MILD, MILD, levels).tolist() if levels > 1 else [0.0]
    gammas = sorted(map(math.exp, logs), key=lambda gamma: abs(math.log(gamma)))
    return [(FLIPS[i % len(FLIPS)], gammas[i // len(FLIPS)]) for i in range(count)]


def relit(memory: ImageMemory, images: Images, gamma: float) -> Images:
    """Normalised images after x^gamma on [0, 1]."""
    if gamma == 1:
        return images
    unit, low, high = memory.to_unit(images)
    unit = unit.clamp(0, 1) ** gamma
    if memory.normalised == "minmax" or memory.normalised == "imagenet":
        return normalise(unit, memory.normalised)
    low, high = (x[:, None, None, None] for x in (low, high))
    return low + (high - low) * unit


def repeated_views(
    look: Look, memory: ImageMemory, images: Images, count: int
) -> Iterator[tuple[Maps, Cells]]:
    """Predictions of `mild_views`, turned back; for networks without dropout."""
    for view, gamma in mild_views(count):
        logits, cells = look(view(relit(memory, images, gamma)))
        yield view.inverse(logits), view.inverse(cells)


def opinion(predictions: Iterator[tuple[Maps, Cells]]) -> Opinion:
    """Mean and spread of repeated predictions, from running sums (Welford)."""
    count, (logits, features) = 1, next(predictions)
    mean, soft_mean = logits.sigmoid(), (logits / TEMPERATURE).sigmoid()
    squares = torch.zeros_like(mean)
    for count, (logits, cells) in enumerate(predictions, 2):
        mean = mean + (logits.sigmoid() - mean) / count
        features = features + (cells - features) / count
        soft = (logits / TEMPERATURE).sigmoid()
        change = soft - soft_mean
        soft_mean = soft_mean + change / count
        squares = squares + change * (soft - soft_mean)
    return Opinion(mean, (squares / max(count - 1, 1)).sqrt(), features)


class Prototypes:
    """Mean features of each structure and of its background, over all images that were added.

    Attributes:
        sums: for each structure, of the object and of the background: weighted sum of features, then sum of weights.
        support: number of sure cells of each structure.
    """

    def __init__(self, structures: int, channels: int, device: torch.device) -> None:
        self.sums = torch.zeros(structures, 2, channels + 1, dtype=torch.float32, device=device)
        self.support = torch.zeros(structures, dtype=torch.float32, device=device)

    def clear(self) -> None:
        """Forget all images."""
        self.sums.zero_()
        self.support.zero_()

    def add(self, seen: Opinion, threshold: float, uncertainty: float) -> None:
        """Add the sure cells of a batch, weighted by their probability."""
        size = seen.features.shape[-2:]
        labels = F.interpolate((seen.mean > threshold).float(), size=size)
        p, u = (F.interpolate(x, size=size, mode="bilinear") for x in (seen.mean, seen.spread))
        sure = (u < uncertainty).float()
        weights = torch.stack([labels * sure * p, (1 - labels) * sure * (1 - p)], 2)
        ones = torch.ones_like(seen.features[:, :1])
        self.sums += torch.einsum("bkoyx,bcyx->koc", weights, torch.cat([seen.features, ones], 1))
        self.support += (labels * sure).sum((0, 2, 3))

    def nearest(self, seen: Opinion, labels: Bool[Tensor, "b k h w"]) -> Bool[Tensor, "b k h w"]:
        """True where the features are nearer to the object's prototype than to the background's.

        A structure with too few sure cells keeps `labels`.
        """
        weights = self.sums[..., -1:]
        centres = self.sums[..., :-1] / weights.clamp(min=1e-12)
        direction, middle = centres[:, 0] - centres[:, 1], centres.mean(1)
        side = torch.einsum("kc,bcyx->bkyx", direction, seen.features)
        nearer = side > (direction * middle).sum(1)[:, None, None]
        nearer = F.interpolate(nearer.float(), size=labels.shape[-2:]) > 0.5
        return torch.where(self.known[:, None, None], nearer, labels)

    @property
    def known(self) -> Bool[Tensor, " k"]:
        """True for structures with enough sure cells of the object and some of the background."""
        return (self.support >= LEAST_SUPPORT) & (self.sums[..., -1] > 0).all(1)
