"""SicTTA: blend each image's bottleneck and BatchNorm statistics with those of similar reliable images.

SicTTA: Single Image Continual Test-Time Adaptation for Medical Image Segmentation, Medical Image Analysis 2026.

No weight changes and there is no gradient. The source model (the anchor) scores the reliability of each image by its
class compact density (CCD). The most reliable images fill a pool. Each image is decoded in one batch with its nearest
images from the pool and shares their statistics.

Decisions: The images of a batch are treated one after the other, as if each came alone, but computed together:
statistics are taken over groups (an image alone, or an image with its neighbours). The authors' code also stores a
soft mask that nothing reads, at the cost of a pass; it is left out. The pool holds 40 images, not 41, and no
bottleneck that is not finite. Sigmoid channels are two-class problems whose densities are averaged. Pixels are drawn
with replacement, from the padded image. The anchor predicts the first image, and every image without neighbours.
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
from ttdg.adaptation.options import COUNT, HEAD, SEED, Option
from ttdg.networks import batchnorm, split
from ttdg.networks.segmenter import pad_to_stride

LARGEST_REJECTION = 0.9  # share of the images that are rejected once the pool has `neighbours` images


@dataclass(frozen=True)
class GroupMode:
    """Batch statistics over groups of `size` consecutive images: `BATCH` for several batches at once."""

    size: int

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise each group with its own statistics; with too few values, use the source statistics."""
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
    """CCD at some pixels: the mean row entropy of softmax(UᵀU), where the rows of U are normalised predictions.

    It is small if the classes are predicted at different pixels. The published 1e-5 in the logarithm is larger than the
    differences between sure predictions, so that those have the same score; this decides which images enter the pool.
    """
    z = logits.flatten(2).gather(2, pixels[:, None].expand(-1, logits.shape[1], -1)).float()
    softmax = losses.uses_softmax(z.shape[1], head)
    p = z.softmax(1)[:, None] if softmax else torch.stack([z.sigmoid(), (-z).sigmoid()], 2)
    unit = F.normalize(p, dim=2)  # (b, problems, classes, n)
    rows = (unit @ unit.mT).softmax(-1)
    return -(rows * (rows + 1e-5).log()).sum(-1).mean((1, 2))


@dataclass(frozen=True)
class Neighbourhood:
    """An image of the batch, its blended bottleneck, and its nearest images from the pool."""

    row: int
    blended: Float[Tensor, "c h w"]
    images: Float[Tensor, "k i height width"]


class Sictta:
    """The adapter of SicTTA.

    State: a pool of (bottleneck, image), the last CCD scores, and a random generator. One call: logits of the anchor;
    bottleneck of each image under its own statistics; CCD of each image; for each image in turn, find its neighbours in
    the pool, then add the image to the pool if it is reliable; encode each image in one batch with its neighbours,
    replace its bottleneck by the blended one and decode. Images without neighbours keep the logits of the anchor.
    """

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
        self.pool, self.scores = Memory(capacity), deque[float](maxlen=capacity)
        self.reset()

    @torch.no_grad()
    def __call__(self, images: Images) -> Logits:
        """Return the logits of the batch and add its reliable images to the pool."""
        inputs = pad_to_stride(images)
        logits, keys = self._anchor_and_keys(inputs)
        groups: list[Neighbourhood] = []
        for row, score in enumerate(self._score(logits, keys)):
            key, image = keys[row : row + 1], inputs[row : row + 1]
            if self.pool.fits(key, image):
                groups.append(self._neighbourhood(row, key))
            if self._is_reliable(score):
                self.pool.push(key, image)
        return split.crop(self._predict_with_neighbours(groups, inputs, logits), images)

    @torch.no_grad()
    def predict_frozen(self, images: Images) -> Logits:
        """Return the logits with neighbours from the pool, which does not change; no random number is drawn."""
        inputs = pad_to_stride(images)
        logits, keys = self._anchor_and_keys(inputs)
        usable = self.pool.fits(keys, inputs)
        groups = [self._neighbourhood(row, key[None]) for row, key in enumerate(keys)] if usable else []
        return split.crop(self._predict_with_neighbours(groups, inputs, logits), images)

    def _anchor_and_keys(self, inputs: Images) -> tuple[Float[Tensor, "b l h w"], Float[Tensor, "b q y x"]]:
        """Logits of the anchor, and the bottleneck of each image under its own statistics."""
        logits = self.network.decode(self.network.encode(inputs))
        with self._using(GroupMode(1)):
            return logits, self.network.encode(inputs)[-1]

    def _score(self, logits: Logits, keys: Float[Tensor, "b q y x"]) -> list[float]:
        """CCD of every image; NaN if its bottleneck is not finite. The host waits here, once per batch."""
        count = logits[0, 0].numel()
        pixels = torch.randint(count, (len(logits), self.pixels), generator=self.generator)
        density = compact_density(logits, pixels.to(logits.device), self.head)
        return density.where(keys.flatten(1).isfinite().all(1), torch.nan).tolist()

    def _neighbourhood(self, row: int, key: Float[Tensor, "1 c h w"]) -> Neighbourhood:
        """Blend q' = (1−r) q + r Σ softmax(cos) q_j over the nearest images in the pool, with r the mean cosine."""
        cosine, rows = self.pool.nearest(key, min(self.neighbours, len(self.pool)))
        keys, images = (column[rows[0]] for column in self.pool.columns)
        r = cosine.mean()
        blended = (1 - r) * key[0] + r * torch.einsum("k,kchw->chw", cosine[0].softmax(0), keys)
        return Neighbourhood(row, blended, images)

    def _predict_with_neighbours(
        self, groups: list[Neighbourhood], inputs: Images, logits: Float[Tensor, "b l h w"]
    ) -> Float[Tensor, "b l h w"]:
        """Replace the logits of the images that have neighbours; groups of one size run together."""
        logits = logits.contiguous()  # those of a classifier share their memory between pixels
        by_size: dict[int, list[Neighbourhood]] = {}
        for group in groups:
            by_size.setdefault(len(group.images), []).append(group)
        for same_size in by_size.values():
            logits[[group.row for group in same_size]] = self._decode_groups(inputs, same_size)
        return logits

    def _decode_groups(
        self, inputs: Images, groups: list[Neighbourhood]
    ) -> Float[Tensor, "g l height width"]:
        """Logits of each image, encoded in one batch with its neighbours and decoded from its blended bottleneck."""
        size = 1 + len(groups[0].images)
        stacked = torch.cat([torch.cat([inputs[g.row][None], g.images]) for g in groups])
        with self._using(GroupMode(size)):
            *skips, deepest = self.network.encode(stacked)
            deepest = deepest.clone()
            deepest[::size] = torch.stack([g.blended for g in groups])
            return self.network.decode((*skips, deepest))[::size]

    @contextmanager
    def _using(self, mode: batchnorm.Mode) -> Iterator[None]:
        """Use another BatchNorm mode inside the block, and EVAL again after it, even after an exception."""
        batchnorm.use(self.network, mode)
        try:
            yield
        finally:
            batchnorm.use(self.network, batchnorm.EVAL)

    def _is_reliable(self, score: float) -> bool:
        """True if the score is among the lowest of the last scores; the accepted share falls while the pool fills."""
        if not math.isfinite(score):
            return False
        self.scores.append(score)
        filling = len(self.pool) < self.neighbours
        rejected = len(self.pool) / self.neighbours if filling else LARGEST_REJECTION
        rank = math.floor((1 - rejected) * len(self.scores))
        return rank > 0 and score <= sorted(self.scores)[rank - 1]

    def reset(self) -> None:
        """Empty the pool and the scores, and restart the random generator."""
        self.pool.clear()
        self.scores.clear()
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
    """Build the adapter of method `sictta`."""
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
    access="source-free",
    paper="SicTTA, Medical Image Analysis 2026",
    origin="a pool of 40, 5 neighbours, 200 pixels: as published",
    options={
        "capacity": Option(
            "number of images in the pool, and of scores that reliability is judged by",
            "the authors' code",
            COUNT,
        ),
        "neighbours": Option("number of images from the pool that join an image", "the authors' code", COUNT),
        "pixels": Option(
            "number of random pixels that the reliability score reads", "the authors' code", COUNT
        ),
        "head": HEAD,
        "seed": SEED,
    },
    needs=("BatchNorm", "encode/decode"),
    reset="continual",
    grid={"neighbours": (1, 3, 5), "capacity": (20, 40)},
)
