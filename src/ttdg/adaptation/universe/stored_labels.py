"""What the memory keeps of each image besides its pixels.

The judge's labels, the carried labels, the expected Dice, how far the carried labels are believed, and the value whose
square weighs the image.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from ttdg.adaptation.site_learning.image_memory import ImageMemory

LEAST = 0.05  # lower bound of a value, so that every image has some weight

Rows = Int[Tensor, " n"]


def notes(
    judged: Float[Tensor, "b l h w"],
    expected: Float[Tensor, " b"],
    carried: Float[Tensor, "b l y x"],
    belief: Float[Tensor, " b"],
    value: Float[Tensor, " b"],
) -> dict[str, Tensor]:
    """The columns of a batch: label probabilities as bytes, expected Dice, belief in carried labels, and value."""
    numbers = {"expected": expected.float(), "belief": belief, "value": value.float()}
    return {"judged": as_bytes(judged), "carried": as_bytes(carried), **numbers}


def as_bytes(probabilities: Float[Tensor, "b l y x"]) -> UInt8[Tensor, "b l y x"]:
    """Probabilities in steps of 1/255."""
    return probabilities.mul(255).round().to(torch.uint8)


class StoredLabels:
    """Reads the columns of a memory."""

    def __init__(self, memory: ImageMemory) -> None:
        self.memory = memory
        self.expected: Float[Tensor, " n"] = memory.columns["expected"][: len(memory)]

    def labels(self, name: str, rows: Rows, size: Sequence[int]) -> Float[Tensor, "n l h w"]:
        """Label probabilities of some images, "judged" or "carried", at a given size."""
        stored = self.memory.note(name, rows).float() + 1e-3
        shrinks = stored.shape[2] > size[0]
        resized = F.interpolate(stored, size=tuple(size), mode="area" if shrinks else "bilinear")
        return resized / resized.sum(1, keepdim=True)

    def ranks(self) -> Float[Tensor, " n"]:
        """Rank of the expected Dice of every image, from 0 (least sure) to 1."""
        return self.expected.argsort().argsort() / max(len(self.expected) - 1, 1)

    def certainty(self) -> Float[Tensor, " n"]:
        """Expected Dice of the surer half of the images; 0 for the others."""
        return torch.where(self.ranks() > 0.5, self.expected, 0.0)

    def weights(self) -> Float[Tensor, " n"]:
        """Squares of the values of the images, divided by their mean."""
        squares = self.memory.columns["value"][: len(self.memory)].clamp(LEAST, 1).square()
        return squares / squares.mean()
