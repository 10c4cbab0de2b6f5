"""A multiplicative prompt on the lowest frequencies of an image (VPTTA's g(x; P)).

The published form is FFT → shift → multiply a k × k window of the amplitude → inverse FFT → real part. Multiplying
an amplitude is multiplying the coefficient, so only k × k coefficients matter: they are read, and their change
added back, by products with k rows of the DFT matrix. Equal to the FFT form; P = 1 is the identity bit for bit.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """The k × k window from index (side − k)//2 of the shifted spectrum: off-centre for even sides, as published."""

    rows: Complex[Tensor, "k h"]  # e^(−2πi f y / h)
    columns: Complex[Tensor, "w k"]
    rows_back: Complex[Tensor, "h k"]  # the inverse, with its 1 / h
    columns_back: Complex[Tensor, "k w"]

    def read(self, images: Float[Tensor, "b c h w"]) -> Complex[Tensor, "b c k k"]:
        """The coefficients in the window; their modulus is the amplitude VPTTA uses as a key."""
        return self.rows @ images.to(self.rows.dtype) @ self.columns

    def prompted(
        self,
        images: Float[Tensor, "b c h w"],
        low: Complex[Tensor, "b c k k"],
        prompt: Float[Tensor, "b c k k"],
    ) -> Float[Tensor, "b c h w"]:
        """x + Re IDFT((P − 1)·F) over the window, with F = `low` as read from the images."""
        return images + (self.rows_back @ ((prompt - 1) * low) @ self.columns_back).real


def window(height: int, width: int, k: int, device: torch.device) -> Window:
    rows, columns = _waves(height, k), _waves(width, k)
    each = rows, columns.T, rows.conj().T / height, columns.conj() / width
    return Window(*(wave.to(torch.complex64).resolve_conj().contiguous().to(device) for wave in each))


def _waves(side: int, k: int) -> Complex[Tensor, "k side"]:
    frequencies = torch.arange(k, dtype=torch.float64) + (side - k) // 2 - side // 2
    angle = -2 * math.pi / side * frequencies[:, None] * torch.arange(side)
    return torch.polar(torch.ones_like(angle), angle)
