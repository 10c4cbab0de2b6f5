"""Leaving `torch.inference_mode`, in which nothing can be learned."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def normal_mode() -> Iterator[None]:
    """Leave `torch.inference_mode`; nothing changes where it is off."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            yield
    else:
        yield


def normal_tensor(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it was made in `torch.inference_mode`: gradients cannot pass through such tensors."""
    return tensor.clone() if tensor.is_inference() else tensor
