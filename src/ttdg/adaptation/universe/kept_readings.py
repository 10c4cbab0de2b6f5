"""Readings of the source network that are kept from the time a folder is stored until its images are answered."""

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.adaptation.universe.source_reading import SourceReading

KEPT = 512  # images at most; of 256 × 256 pixels and two labels, one takes a megabyte

Key = tuple[int | float, ...]


class KeptReadings:
    """Readings by the content of their batch. A reading depends on its whole batch, so another batch is not found."""

    def __init__(self) -> None:
        self._readings: dict[Key, SourceReading] = {}
        self._images = 0

    def add(self, images: Float[Tensor, "b c h w"], reading: SourceReading) -> bool:
        """Keep the reading of a batch and return True, unless there are too many images."""
        if fits := self._images + len(images) <= KEPT:
            self._readings[_key(images)] = reading
            self._images += len(images)
        return fits

    def take(self, images: Float[Tensor, "b c h w"]) -> SourceReading | None:
        """Return the reading of a batch and forget it; None if it is not kept."""
        return self._readings.pop(_key(images), None) if self._readings else None

    def clear(self) -> None:
        """Forget all readings."""
        self._readings.clear()
        self._images = 0


def _key(images: Float[Tensor, "b c h w"]) -> Key:
    """Shape, sum and weighted sum in float64. Batches that differ in a value or in its place have other sums."""
    x = images.detach().double().flatten()
    places = torch.arange(1, len(x) + 1, dtype=torch.float64, device=x.device)
    return (*images.shape, *torch.stack([x.sum(), x @ places]).tolist())
