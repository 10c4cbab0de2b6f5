"""Repeatable gradients on a GPU.

Sums on a GPU have no fixed order, so two runs of a method that takes gradients differ in the last bits, and a long
stream makes the difference larger. PyTorch has a second implementation of most of these operations with a fixed order.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS reads it at the first matrix product of a process
FIXED_WORKSPACE = ":4096:8"
NO_ALTERNATIVE = r".*does not have a deterministic implementation.*"


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Use operations with a fixed order of sums wherever PyTorch has them; the settings are restored at the end.

    Operations without such an implementation stay as they are, and one warning names each of them. New tensors are not
    filled, which PyTorch would do by default in this mode and which costs time.
    """
    deterministic: Any = torch.utils.deterministic
    settings = torch.get_deterministic_debug_mode(), deterministic.fill_uninitialized_memory
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    workspace = os.environ.get(WORKSPACE)
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        deterministic.fill_uninitialized_memory = False
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        os.environ.setdefault(WORKSPACE, FIXED_WORKSPACE)
        with warnings.catch_warnings():
            warnings.filterwarnings("once", NO_ALTERNATIVE)
            yield
    finally:
        torch.set_deterministic_debug_mode(settings[0])
        deterministic.fill_uninitialized_memory = settings[1]
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
        if workspace is None:
            os.environ.pop(WORKSPACE, None)
