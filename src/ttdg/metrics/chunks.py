"""Pixel-wise work a few images at a time: memory stays bounded, and on a CPU the cache holds it."""

from collections.abc import Iterator

import torch
from torch import Tensor

CACHE_PIXELS = 2**18  # on a CPU, a fresh page of memory costs more than the arithmetic on it
DEVICE_PIXELS = 2**25  # 256 MiB for one float64 map


def slices(*tensors: Tensor, pixels: int | None = None) -> Iterator[tuple[Tensor, ...]]:
    """Slices of the first axis, which the tensors share; an item of it stands for so many pixels."""
    if pixels is None:
        pixels = tensors[0].shape[1:].numel()
    budget = CACHE_PIXELS if tensors[0].device.type == "cpu" else DEVICE_PIXELS
    items = max(1, budget // max(1, pixels))
    return zip(*(torch.split(tensor, items) for tensor in tensors), strict=True)


def summing_dtype(device: torch.device) -> torch.dtype:
    """For sums of pixels as matrix products: float32 is faster on a CPU; elsewhere float64 escapes TF32."""
    return torch.float32 if device.type == "cpu" else torch.float64
