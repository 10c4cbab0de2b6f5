"""The size of the node grid, and bilinear resizing of feature maps to it as two matrix products.

`F.interpolate` computes the same values, but uses one thread for each position of the map. With many channels it took
four times as long on a CPU, and a tenth of a whole call of the method `universe-choice` on a GPU.
"""

from collections.abc import Mapping
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def grid_size(maps: Mapping[str, Tensor], stride: int) -> tuple[int, int]:
    """(height, width) of the node grid that covers the level "input"."""
    y, x = maps["input"].shape[2:]
    return -(-y // stride), -(-x // stride)


def resize_bilinear(x: Float[Tensor, "b c h w"], size: tuple[int, int]) -> Float[Tensor, "b c y x"]:
    """Same as `F.interpolate(x, size, mode="bilinear")`, up to rounding."""
    if tuple(x.shape[2:]) == size:
        return x
    rows, columns = (_interpolation_matrix(n, m, x.device) for n, m in zip(x.shape[2:], size, strict=True))
    return rows.to(x) @ (x @ columns.mT.to(x))


@cache
def _interpolation_matrix(n: int, m: int, device: torch.device) -> Float[Tensor, "m n"]:
    """The matrix that interpolates n values linearly at m positions."""
    with torch.inference_mode(False):
        return F.interpolate(torch.eye(n)[None], size=m, mode="linear", align_corners=False)[0].mT.to(device)
