"""A bounded memory of unlabelled images, stored as bytes at the size of the network's input."""

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ttdg.data.transforms import IMAGENET_MEAN, IMAGENET_STD, normalise

Normalised = Literal["minmax", "imagenet", "affine"]
TOLERANCE = 0.02  # by which an un-normalised pixel may leave [0, 1]


class ImageMemory:
    """Images in [0, 1] as bytes, drawn at random and returned with the normalisation of the network's input.

    Adapters receive normalised images. The memory recognises the normalisation of the first images and undoes it, so
    that augmentation works on ordinary images:

    - `minmax`: every image spans exactly [0, 1]. Drawn images are normalised again after augmentation.
    - `imagenet`: subtracting and dividing by ImageNet's statistics leads from [0, 1] to the image.
    - `affine`: anything else. Each image is scaled by its own minimum and maximum, which are kept.

    Once `capacity` images are stored, a new image replaces a random one, so that the memory is a uniform sample of the
    stream (reservoir sampling). Images of another size empty the memory. Images with a value that is not finite are
    not stored.
    """

    def __init__(self, capacity: int | None, seed: int) -> None:
        self.capacity, self.seed = capacity, seed
        self.clear()

    def clear(self) -> None:
        """Forget all images and restart the random numbers."""
        self.pixels = torch.empty(0, dtype=torch.uint8)  # rows beyond `stored` are free
        self.low, self.high = torch.empty(0), torch.empty(0)
        self.stored = self.seen = 0
        self.normalised: Normalised | None = None
        self.generator = torch.Generator().manual_seed(self.seed)

    def __len__(self) -> int:
        return self.stored

    def add(self, images: Float[Tensor, "b c h w"]) -> None:
        """Store the finite images of a batch."""
        images = images[images.isfinite().flatten(1).all(1)].float()
        if not len(images):
            return
        if len(self) and images.shape[1:] != self.pixels.shape[1:]:
            self.clear()
        if self.normalised is None:
            self.normalised = recognise(images)
        raw, low, high = self._to_unit(images)
        pixels = raw.mul(255).round_().clamp_(0, 255).to(torch.uint8)
        if placed := self._placed(len(pixels)):
            rows, chosen = list(placed), list(placed.values())
            self._reserve(max(rows) + 1, pixels, low)
            self.pixels[rows], self.low[rows], self.high[rows] = pixels[chosen], low[chosen], high[chosen]
            self.stored = max(self.stored, max(rows) + 1)

    def _reserve(self, rows: int, pixels: Tensor, low: Tensor) -> None:
        """Make room for `rows` images; the room doubles, so that each image is copied a bounded number of times."""
        if rows <= len(self.pixels):
            return
        room = max(rows, 2 * len(self.pixels), 16)
        room = room if self.capacity is None else min(room, self.capacity)
        larger = pixels.new_empty((room, *pixels.shape[1:])), low.new_empty(room), low.new_empty(room)
        for new, old in zip(larger, (self.pixels, self.low, self.high), strict=True):
            if self.stored:
                new[: self.stored] = old[: self.stored]
        self.pixels, self.low, self.high = larger

    def _placed(self, count: int) -> dict[int, int]:
        """Return the rows to write, each with the number of its new image. A later image replaces an earlier one."""
        placed: dict[int, int] = {}
        for i in range(count):
            self.seen += 1
            if self.capacity is None or len(self) + i < self.capacity:
                placed[len(self) + i] = i
            elif (row := int(torch.randint(self.seen, (1,), generator=self.generator))) < self.capacity:
                placed[row] = i
        return placed

    def draw(self, count: int) -> Int[Tensor, " n"]:
        """Return the rows of `count` random images, without repetition while the memory is large enough."""
        order = torch.randperm(len(self), generator=self.generator)
        if count <= len(order):
            return order[:count]
        return order.repeat(-(-count // len(order)))[:count]

    def unit_images(self, rows: Int[Tensor, " n"]) -> Float[Tensor, "n c h w"]:
        """Return images in [0, 1]."""
        return self.pixels[rows.to(self.pixels.device)].float().div_(255)

    def network_input(
        self, images: Float[Tensor, "n c h w"], rows: Int[Tensor, " n"]
    ) -> Float[Tensor, "n c h w"]:
        """Normalise images in [0, 1], possibly augmented, as the images that were stored."""
        if self.normalised == "minmax" or self.normalised == "imagenet":
            return normalise(images, self.normalised)
        rows = rows.to(self.low.device)
        low, high = (x[rows][:, None, None, None] for x in (self.low, self.high))
        return low + (high - low) * images

    def _to_unit(
        self, images: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Return the images in [0, 1], and the minimum and maximum of each image."""
        low, high = images.amin((1, 2, 3)), images.amax((1, 2, 3))
        if self.normalised == "minmax":
            return images, low, high
        if self.normalised == "imagenet":
            return from_imagenet(images), low, high
        span = (high - low).clamp(min=1e-6)[:, None, None, None]
        return (images - low[:, None, None, None]) / span, low, high

    def state(self) -> dict[str, Tensor]:
        """All state by name, as tensors; `load_state` restores it."""
        how = -1 if self.normalised is None else get_args(Normalised).index(self.normalised)
        capacity = -1 if self.capacity is None else self.capacity
        return {
            "pixels": self.pixels[: self.stored],
            "low": self.low[: self.stored],
            "high": self.high[: self.stored],
            "counts": torch.tensor([self.stored, self.seen, capacity, how]),
            "generator": self.generator.get_state(),
        }

    def load_state(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Continue from a saved state, with the images on `device`."""
        self.pixels, self.low, self.high = (
            state[name].to(device, copy=True) for name in ("pixels", "low", "high")
        )
        self.stored, self.seen, capacity, how = state["counts"].tolist()
        self.capacity = None if capacity < 0 else capacity
        self.normalised = None if how < 0 else get_args(Normalised)[how]
        self.generator.set_state(state["generator"].cpu())


def recognise(images: Float[Tensor, "b c h w"]) -> Normalised:
    """Return how images were normalised."""
    low, high = images.amin((1, 2, 3)), images.amax((1, 2, 3))
    if images.shape[1] == 3 and (low == 0).all() and ((high == 1) | (high == 0)).all():
        return "minmax"
    if images.shape[1] == 3:
        raw = from_imagenet(images)
        if raw.min() >= -TOLERANCE and raw.max() <= 1 + TOLERANCE:
            return "imagenet"
    return "affine"


def from_imagenet(images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
    """Undo the normalisation by ImageNet's statistics."""
    mean, std = (
        torch.tensor(x, dtype=images.dtype, device=images.device) for x in (IMAGENET_MEAN, IMAGENET_STD)
    )
    return images * std[:, None, None] + mean[:, None, None]
