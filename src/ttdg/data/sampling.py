"""Sampling of the cases of a training batch."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Generator, Tensor


def balanced_indices(
    sizes: Sequence[int], batch_size: int, generator: Generator, power: float = 0.5
) -> tuple[Int[Tensor, "b"], Int[Tensor, "b"]]:
    """Draw `batch_size` cases with replacement; return the site and the index within the site of each.

    `sizes` are the numbers of cases. A site of n cases is drawn with probability proportional to nᵖᵒʷᵉʳ: power 0 draws
    all sites equally often, power 1 all cases equally often. A power in between keeps large sites from dominating and
    small sites from being overfitted. Empty sites are never drawn.
    """
    n = torch.tensor(sizes, dtype=torch.float64)
    weights = torch.where(n > 0, n**power, 0.0)
    site = torch.multinomial(weights, batch_size, replacement=True, generator=generator)
    share = torch.rand(batch_size, dtype=torch.float64, generator=generator)
    return site, (share * n[site]).long()
