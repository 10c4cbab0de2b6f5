"""Drawing the cases of a training batch, and gathering their pixels."""

from collections.abc import Sequence

import torch
from jaxtyping import Int, UInt8
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


def gather_cases(
    sites: Sequence[tuple[UInt8[Tensor, "_n 3 s s"], UInt8[Tensor, "_n s s"]]],
    site: Int[Tensor, "b"],
    index: Int[Tensor, "b"],
    device: torch.device,
) -> tuple[UInt8[Tensor, "b 3 s s"], UInt8[Tensor, "b s s"]]:
    """Return the images and masks, on `device`, of cases that are sorted by site.

    `sites` are the images and masks of every site. `site` and `index` are those of `balanced_indices`.
    """
    images, masks = [], []
    for number, (all_images, all_masks) in enumerate(sites):
        rows = index[site == number].to(all_images.device)
        images.append(all_images[rows].to(device))
        masks.append(all_masks[rows].to(device))
    return torch.cat(images), torch.cat(masks)
