"""VPTTA's prompt g(x; P): a factor for each of the lowest frequencies of an image.

The published form is FFT → shift → multiply a k × k window of the amplitude → inverse FFT → real part. Multiplying
the amplitude by P multiplies the complex coefficient by P, so only k × k coefficients change. This module computes
them, and the change of the image, by products with k rows of the DFT matrix. The result equals the FFT form up to
rounding; for P = 1 it is the image itself, bit for bit.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor


@dataclass(frozen=True)
class FourierWindow:
    """DFT matrices of a k × k window that starts at index (side − k)//2 of the shifted spectrum.

    The window is off-centre for even sides, as published.
    """

    rows: Complex[Tensor, "k h"]  # e^(−2πi f y / h)
    columns: Complex[Tensor, "w k"]
    rows_back: Complex[Tensor, "h k"]  # inverse DFT, with its factor 1 / h
    columns_back: Complex[Tensor, "k w"]

    def coefficients(self, images: Float[Tensor, "b c h w"]) -> Complex[Tensor, "b c k k"]:
        """Return the Fourier coefficients in the window; VPTTA uses their absolute values as keys."""
        return self.rows @ images.to(self.rows.dtype) @ self.columns

    def apply_prompt(
        self,
        images: Float[Tensor, "b c h w"],
        coefficients: Complex[Tensor, "b c k k"],
        prompt: Float[Tensor, "b c k k"],
    ) -> Float[Tensor, "b c h w"]:
        """Return x + Re IDFT((P − 1)·F), where F are the coefficients of the images in the window."""
        return images + (self.rows_back @ ((prompt - 1) * coefficients) @ self.columns_back).real


def fourier_window(height: int, width: int, k: int, device: torch.device) -> FourierWindow:
    """Build the window of size k × k for images of one size."""
    rows, columns = _dft_rows(height, k), _dft_rows(width, k)
    matrices = rows, columns.T, rows.conj().T / height, columns.conj() / width
    return FourierWindow(
        *(matrix.to(torch.complex64).resolve_conj().contiguous().to(device) for matrix in matrices)
    )


def _dft_rows(side: int, k: int) -> Complex[Tensor, "k side"]:
    """Rows of the DFT matrix for the k frequencies in the window, in double precision."""
    frequencies = torch.arange(k, dtype=torch.float64) + (side - k) // 2 - side // 2
    angle = -2 * math.pi / side * frequencies[:, None] * torch.arange(side)
    return torch.polar(torch.ones_like(angle), angle)
