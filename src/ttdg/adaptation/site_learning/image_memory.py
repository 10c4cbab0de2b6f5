"""A bounded memory of unlabelled images, stored as bytes at the size of the network's input."""

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from ttdg.data.transforms import IMAGENET_MEAN, IMAGENET_STD, normalise

Normalised = Literal["minmax", "imagenet", "affine", "zscore"]  # states hold the position: append only
TOLERANCE = 0.02  # by which an un-normalised pixel may leave [0, 1]


class ImageMemory:
    """Images in [0, 1] as bytes, drawn at random and returned with the normalisation of the network's input.

    Adapters receive normalised images. The memory recognises the normalisation of the first images and undoes it, so
    that augmentation works on ordinary images:

    - `minmax`: every image spans exactly [0, 1]. Drawn images are normalised again after augmentation.
    - `imagenet`: subtracting and dividing by ImageNet's statistics leads from [0, 1] to the image.
    - `zscore`: every image has mean 0 and variance 1. Drawn images are normalised again after augmentation.
    - `affine`: anything else. Each image is scaled by its own minimum and maximum, which are kept.

    Once `capacity` images are stored, a new image replaces a random one, so that the memory is a uniform sample of the
    stream (reservoir sampling). Images of another size empty the memory. Images with a value that is not finite are
    not stored.

    Attributes:
        columns: tensors with one row for each image: `pixels`, the minimum `low` and maximum `high`, and the notes that
            were given to `add`. Rows beyond the number of stored images are free.
    """

    def __init__(self, capacity: int | None, seed: int) -> None:
        self.capacity, self.seed = capacity, seed
        self.clear()

    def clear(self) -> None:
        """Forget all images and restart the random numbers."""
        self.columns: dict[str, Tensor] = {}
        self.stored = self.seen = 0
        self.normalised: Normalised | None = None
        self.generator = torch.Generator().manual_seed(self.seed)

    def __len__(self) -> int:
        return self.stored

    @property
    def pixels(self) -> UInt8[Tensor, "n c h w"]:
        """The rows of all images; rows beyond the number of stored images are free."""
        return self.columns["pixels"]

    def add(self, images: Float[Tensor, "b c h w"], **notes: Shaped[Tensor, "b *_"]) -> None:
        """Store the images of a batch, each with one row of every note."""
        images = images.float()
        if len(self) and images.shape[1:] != self.pixels.shape[1:]:
            self.clear()
        raw, low, high = self.to_unit(images)
        pixels = raw.mul(255).round_().clamp_(0, 255).to(torch.uint8)
        if placed := self._placed(len(pixels)):
            rows, chosen = list(placed), list(placed.values())
            new = {"pixels": pixels, "low": low, "high": high, **notes}
            self._reserve(max(rows) + 1, new)
            for name, column in self.columns.items():
                column[rows] = new[name][chosen]
            self.stored = max(self.stored, max(rows) + 1)

    def _reserve(self, rows: int, like: Mapping[str, Tensor]) -> None:
        """Make room for `rows` images; the room doubles, so that each image is copied a bounded number of times."""
        room = len(self.pixels) if self.columns else 0
        if rows <= room:
            return
        room = max(rows, 2 * room, 16)
        room = room if self.capacity is None else min(room, self.capacity)
        for name, values in like.items():
            larger = values.new_empty((room, *values.shape[1:]))
            if self.stored:
                larger[: self.stored] = self.columns[name][: self.stored]
            self.columns[name] = larger

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
        return self.note("pixels", rows).float().div_(255)

    def note(self, name: str, rows: Int[Tensor, " n"]) -> Shaped[Tensor, "n *_"]:
        """Return a column of some images."""
        column = self.columns[name]
        return column[rows.to(column.device)]

    def network_input(
        self, images: Float[Tensor, "n c h w"], rows: Int[Tensor, " n"]
    ) -> Float[Tensor, "n c h w"]:
        """Normalise images in [0, 1], possibly augmented, as the images that were stored."""
        if self.normalised is not None and self.normalised != "affine":
            return normalise(images, self.normalised)
        low, high = (self.note(name, rows)[:, None, None, None] for name in ("low", "high"))
        return low + (high - low) * images

    def to_unit(
        self, images: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Return the images in [0, 1], and the minimum and maximum of each image.

        The first call recognises how images are normalised.
        """
        if self.normalised is None:
            self.normalised = recognise(images)
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
            **{f"column.{name}": column[: self.stored] for name, column in self.columns.items()},
            "counts": torch.tensor([self.stored, self.seen, capacity, how]),
            "generator": self.generator.get_state(),
        }

    def load_state(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Continue from a saved state, with the images on `device`."""
        self.columns = {
            name.removeprefix("column."): value.to(device, copy=True)
            for name, value in state.items()
            if name.startswith("column.")
        }
        self.stored, self.seen, capacity, how = state["counts"].tolist()
        self.capacity = None if capacity < 0 else capacity
        self.normalised = None if how < 0 else get_args(Normalised)[how]
        self.generator.set_state(state["generator"].cpu())


def recognise(images: Float[Tensor, "b c h w"]) -> Normalised:
    """Return how images were normalised."""
    low, high = images.amin((1, 2, 3)), images.amax((1, 2, 3))
    if images.shape[1] == 3 and (low == 0).all() and ((high == 1) | (high == 0)).all():
        return "minmax"
    variance, mean = torch.var_mean(images, (1, 2, 3), correction=0)
    if images.shape[1] == 3 and (mean.abs() < 1e-3).all() and ((variance - 1).abs() < 1e-3).all():
        return "zscore"
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
