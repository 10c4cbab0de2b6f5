"""How to go through pixels: a few images at a time, in one thread, summing exactly enough."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

CACHE_PIXELS = 2**17  # on a CPU, memory beyond the cache costs more than the arithmetic on it
DEVICE_PIXELS = 2**25  # 256 MiB for one float64 map


def slices(*tensors: Tensor, pixels: int | None = None) -> Iterator[tuple[Tensor, ...]]:
    """Slices of the first axis, which the tensors share; an item of it stands for so many pixels."""
    if pixels is None:
        pixels = tensors[0].shape[1:].numel()
    budget = CACHE_PIXELS if tensors[0].device.type == "cpu" else DEVICE_PIXELS
    items = max(1, budget // max(1, pixels))
    return zip(*(torch.split(tensor, items) for tensor in tensors), strict=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Many short steps: on a busy CPU, each would wait milliseconds until all threads are running."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def summing_dtype(device: torch.device) -> torch.dtype:
    """For sums of pixels by matrix products: float32 where a CPU takes it at its word, else float64.

    Float64 is never rounded to TF32 or bfloat16, whatever speed the user has asked of float32.
    """
    precision = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    return torch.float32 if device.type == "cpu" and precision in ("none", "ieee") else torch.float64
