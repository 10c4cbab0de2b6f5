"""Processing many images: chunks that fit the cache, one thread, and a sufficiently exact dtype for sums."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

CACHE_PIXELS = 2**17  # per chunk on a CPU: beyond the cache, memory access costs more than the arithmetic
LOCK, INSIDE = threading.Lock(), list[int]()  # the caller's number of threads, once for each context
DEVICE_PIXELS = 2**25  # per chunk on a GPU: 256 MiB for one float64 map


def slices(*tensors: Tensor, pixels: int | None = None) -> Iterator[tuple[Tensor, ...]]:
    """Chunks of several tensors along their common first axis.

    `pixels` is the cost of one item; by default the number of elements of an item of the first tensor.
    """
    if pixels is None:
        pixels = tensors[0].shape[1:].numel()
    budget = CACHE_PIXELS if tensors[0].device.type == "cpu" else DEVICE_PIXELS
    items = max(1, budget // max(1, pixels))
    return zip(*(torch.split(tensor, items) for tensor in tensors), strict=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs torch in one thread inside the context.

    The metrics take many short steps; on a busy CPU each would wait milliseconds for all threads to start.
    """
    # Later threads inherit the number, so the second to enter must not take 1 for that of the caller.
    with LOCK:
        INSIDE.append(INSIDE[-1] if INSIDE else torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with LOCK:
            torch.set_num_threads(INSIDE.pop())


def summing_dtype(device: torch.device) -> torch.dtype:
    """Dtype for sums of pixels by matrix products: float32 on a CPU with full float32 precision, else float64.

    Float64 products are never rounded to TF32 or bfloat16, whatever float32 precision the user has set.
    """
    precision = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    return torch.float32 if device.type == "cpu" and precision in ("none", "ieee") else torch.float64
