"""Names of the devices a network can run on."""

import re

import torch

from ttdg.errors import UserError


def resolve_device(name: str) -> str:
    """Return the PyTorch device for `auto`, `cpu`, `cuda` or `cuda:N`; `auto` prefers a GPU.

    Raises:
        UserError: The name is none of these, or PyTorch cannot use that GPU.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if gpus else "cpu"
    if name == "cpu":
        return name
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise UserError(f"unknown device {name!r}; use 'auto', 'cpu', 'cuda' or 'cuda:N' for GPU number N")
    if not gpus:
        raise UserError(f"the device {name!r} is not available: PyTorch finds no GPU; use 'cpu'")
    if int(match[1] or 0) >= gpus:
        raise UserError(f"the device {name!r} does not exist; PyTorch finds {gpus} GPU(s), numbered from 0")
    return name
