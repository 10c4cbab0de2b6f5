"""SicTTA: an image's bottleneck, and its BatchNorm statistics, are pulled towards similar images seen to be reliable.

SicTTA: Single Image Continual Test-Time Adaptation for Medical Image Segmentation, Medical Image Analysis 2026.

No weight is ever changed and nothing is differentiated. The source model (the anchor) says by its class compact
density (CCD) how reliable an image is; the most reliable fill a pool; each image is then decoded in one batch with
its neighbours from the pool, whose statistics it shares.

Decisions: images of a batch are answered one after the other, as if they had come alone, but computed together:
statistics are taken over groups (an image; an image and its neighbours). The release also stores a soft mask
that nothing reads, at the cost of a pass: left out. The pool holds 40, not 41, and no bottleneck that is not finite.
Sigmoid channels are two-class problems, their densities averaged; pixels are drawn with replacement, from the
image and what it is padded with. The first image, and any without neighbours, is answered by the anchor.
"""

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.memory import Memory
from ttdg.networks import batchnorm, split
from ttdg.networks.segmenter import pad_to_stride

TIGHTEST = 0.9  # of the images are turned away once the pool has its neighbours


@dataclass(frozen=True)
class Groups:
    """Batch statistics over every `size` images in a row instead of over all: BATCH, for several batches at once."""

    size: int

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        b, c, *hw = x.shape
        if batchnorm.has_too_few_values(x[: self.size]):
            return batchnorm.EVAL(layer, x)
        if b == self.size:
            return batchnorm.BATCH(layer, x)
        rows = (
            x.reshape(b // self.size, self.size, c, -1)
            .transpose(1, 2)
            .reshape(1, -1, self.size, math.prod(hw))
        )
        weight, bias = (
            None if value is None else value.repeat(b // self.size) for value in (layer.weight, layer.bias)
        )
        y = F.batch_norm(rows, None, None, weight, bias, True, 0.0, layer.eps)
        return y.view(b // self.size, c, self.size, -1).transpose(1, 2).reshape(x.shape)


def compact_density(
    logits: Float[Tensor, "b c *hw"], pixels: Int[Tensor, "b n"], head: losses.Head
) -> Float[Tensor, "b"]:
    """CCD at some pixels: the mean row entropy of softmax(UᵀU), rows of U being unit predictions.

    Small where the classes are predicted apart from each other, each at its own pixels. The published 1e-5 in the
    logarithm is more than what tells sure predictions apart: they tie, which decides who enters the pool."""
    z = logits.flatten(2).gather(2, pixels[:, None].expand(-1, logits.shape[1], -1)).float()
    by_softmax = losses.by_softmax(z.shape[1], head)
    p = z.softmax(1)[:, None] if by_softmax else torch.stack([z.sigmoid(), (-z).sigmoid()], 2)
    unit = F.normalize(p, dim=2)  # (b, problems, classes, n)
    rows = (unit @ unit.mT).softmax(-1)
    return -(rows * (rows + 1e-5).log()).sum(-1).mean((1, 2))


@dataclass(frozen=True)
class Friends:
    """An image of the batch with its blended bottleneck, and its neighbours from the pool."""

    row: int
    blended: Float[Tensor, "c h w"]
    images: Float[Tensor, "k i height width"]


class Sictta:
    def __init__(
        self,
        network: nn.Module,
        *,
        capacity: int,
        neighbours: int,
        pixels: int,
        head: losses.Head,
        seed: int,
    ) -> None:
        self.network = split.require_split(network.eval().requires_grad_(False))
        self.neighbours, self.pixels, self.head, self.seed = neighbours, pixels, head, seed
        batchnorm.use(network, batchnorm.EVAL)
        self.pool, self.doubts = Memory(capacity), deque[float](maxlen=capacity)
        self.reset()

    @torch.no_grad()
    def __call__(self, images: Images) -> Logits:
        inputs = pad_to_stride(images)
        answers, keys = self._alone(inputs)
        friends: list[Friends] = []
        for row, doubt in enumerate(self._doubts(answers, keys)):
            key, image = keys[row : row + 1], inputs[row : row + 1]
            if self.pool.fits(key, image):
                friends.append(self._friends(row, key))
            if self._reliable(doubt):
                self.pool.push(key, image)
        return split.crop(self._among(friends, inputs, answers), images)

    @torch.no_grad()
    def predict_frozen(self, images: Images) -> Logits:
        """The answer with neighbours from the pool as it is; no image enters it, and nothing is drawn."""
        inputs = pad_to_stride(images)
        answers, keys = self._alone(inputs)
        found = self.pool.fits(keys, inputs)
        friends = [self._friends(row, key[None]) for row, key in enumerate(keys)] if found else []
        return split.crop(self._among(friends, inputs, answers), images)

    def _alone(self, inputs: Images) -> tuple[Float[Tensor, "b l h w"], Float[Tensor, "b q y x"]]:
        """The anchor's answers, and each image's bottleneck under its own statistics."""
        answers = self.network.decode(self.network.encode(inputs))
        with self._under(Groups(1)):
            return answers, self.network.encode(inputs)[-1]

    def _doubts(self, logits: Logits, keys: Float[Tensor, "b q y x"]) -> list[float]:
        """Of every image in the batch, NaN where the bottleneck is not finite: the one moment the host waits, since
        they decide what the pool holds."""
        count = logits[0, 0].numel()
        pixels = torch.randint(count, (len(logits), self.pixels), generator=self.generator)
        density = compact_density(logits, pixels.to(logits.device), self.head)
        return density.where(keys.flatten(1).isfinite().all(1), torch.nan).tolist()

    def _friends(self, row: int, key: Float[Tensor, "1 c h w"]) -> Friends:
        """q' = (1−r) q + r Σ softmax(cos) q_j, r = mean cos, over the nearest in the pool."""
        cosine, rows = self.pool.nearest(key, min(self.neighbours, len(self.pool)))
        keys, images = (column[rows[0]] for column in self.pool.columns)
        r = cosine.mean()
        blended = (1 - r) * key[0] + r * torch.einsum("k,kchw->chw", cosine[0].softmax(0), keys)
        return Friends(row, blended, images)

    def _among(
        self, friends: list[Friends], inputs: Images, answers: Float[Tensor, "b l h w"]
    ) -> Float[Tensor, "b l h w"]:
        """The answers, those of images with friends given anew in their company."""
        waiting: dict[int, list[Friends]] = {}
        for group in friends:
            waiting.setdefault(len(group.images), []).append(group)
        for groups in waiting.values():
            answers[[group.row for group in groups]] = self._together(inputs, groups)
        return answers

    def _together(self, inputs: Images, groups: list[Friends]) -> Float[Tensor, "g l height width"]:
        """Each image decoded in one batch with its friends, from its blended bottleneck."""
        size = 1 + len(groups[0].images)
        stacked = torch.cat([torch.cat([inputs[g.row][None], g.images]) for g in groups])
        with self._under(Groups(size)):
            *skips, deepest = self.network.encode(stacked)
            deepest = deepest.clone()
            deepest[::size] = torch.stack([g.blended for g in groups])
            return self.network.decode((*skips, deepest))[::size]

    @contextmanager
    def _under(self, mode: batchnorm.Mode) -> Iterator[None]:
        """Other statistics for a while; the anchor's again whatever happens."""
        batchnorm.use(self.network, mode)
        try:
            yield
        finally:
            batchnorm.use(self.network, batchnorm.EVAL)

    def _reliable(self, doubt: float) -> bool:
        """Among the least doubtful of the last images, the share of which tightens while the pool fills."""
        if not math.isfinite(doubt):
            return False
        self.doubts.append(doubt)
        filling = len(self.pool) < self.neighbours
        turned_away = len(self.pool) / self.neighbours if filling else TIGHTEST
        rank = math.floor((1 - turned_away) * len(self.doubts))
        return rank > 0 and doubt <= sorted(self.doubts)[rank - 1]

    def reset(self) -> None:
        self.pool.clear()
        self.doubts.clear()
        self.generator = torch.Generator().manual_seed(self.seed)


def sictta(
    network: nn.Module,
    *,
    capacity: int = 40,
    neighbours: int = 5,
    pixels: int = 200,
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    return Sictta(network, capacity=capacity, neighbours=neighbours, pixels=pixels, head=head, seed=seed)


METHOD = Method(
    build=sictta,
    summary="bottleneck and BatchNorm statistics shared with similar reliable images of the stream; no gradient",
    adapts="nothing",
    norm="EVAL, then BATCH over neighbours",
    memory=True,
    forwards=8,
    backwards=0,
    predict="before",
    paper="SicTTA, Medical Image Analysis 2026",
    origin="a pool of 40, 5 neighbours, 200 pixels: as published",
    needs=("BatchNorm", "encode/decode"),
    reset="continual",
    grid={"neighbours": (1, 3, 5), "capacity": (20, 40)},
)
