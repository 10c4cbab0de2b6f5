"""Leaving modes of the caller: `torch.inference_mode`, in which nothing can be learned, and `torch.autocast`."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor


@contextmanager
def normal_mode() -> Iterator[None]:
    """Leave `torch.inference_mode` and `torch.autocast`, and make tensors in float32 as torch does by default.

    Methods choose their precision themselves.
    """
    with ExitStack() as stack:
        if (kind := torch.get_default_dtype()) != torch.float32:
            stack.callback(torch.set_default_dtype, kind)
            torch.set_default_dtype(torch.float32)
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def normal_tensor(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it was made in `torch.inference_mode`: gradients cannot pass through such tensors."""
    return tensor.clone() if tensor.is_inference() else tensor
