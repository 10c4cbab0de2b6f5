"""Which cases make up a training batch."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Generator, Tensor


def balanced_indices(
    sizes: Sequence[int], batch_size: int, generator: Generator, power: float = 0.5
) -> tuple[Int[Tensor, "b"], Int[Tensor, "b"]]:
    """(site, index within the site) of `batch_size` cases drawn with replacement.

    Sites of n cases are drawn in proportion to nᵖᵒʷᵉʳ: 0 treats all sites alike, 1 all cases alike. Between
    the two, a large site does not drown a small one, nor is the small one learnt by heart. Empty sites are
    not drawn.
    """
    n = torch.tensor(sizes, dtype=torch.float64)
    weights = torch.where(n > 0, n**power, 0.0)
    site = torch.multinomial(weights, batch_size, replacement=True, generator=generator)
    share = torch.rand(batch_size, dtype=torch.float64, generator=generator)
    return site, (share * n[site]).long()
