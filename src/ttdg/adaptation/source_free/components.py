"""Largest connected components of masks, for whole batches and without waiting for the device."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

ROUNDS = (
    24  # each round joins every component to a neighbour, so that components of 2²⁴ pixels are found at worst
)


def largest_components(masks: Bool[Tensor, "*b h w"]) -> Bool[Tensor, "*b h w"]:
    """Keep the largest component of each mask; pixels are connected through their sides.

    Of components of the same size, the one with the last pixel in reading order is kept. An empty mask stays empty.
    """
    flat = masks.flatten(0, -3) if masks.dim() > 2 else masks[None]
    roots = component_roots(flat).flatten(1)
    inside = flat.flatten(1)
    sizes = torch.zeros_like(roots).scatter_add_(1, roots, inside.to(roots))
    best = sizes.shape[1] - 1 - sizes.flip(1).argmax(1, keepdim=True)
    return ((roots == best) & inside).view(masks.shape)


def component_roots(masks: Bool[Tensor, "b h w"]) -> Int[Tensor, "b h w"]:
    """For each pixel of a mask the largest pixel number of its component; pixels outside have their own number.

    In each round, every component is hooked onto the largest root beside it, and all pixels jump to the root of their
    root.
    """
    b, h, w = masks.shape
    own = torch.arange(h * w, device=masks.device).expand(b, -1)
    roots, inside = own.clone(), masks.flatten(1)
    for _ in range(ROUNDS):
        seen = torch.where(inside, roots, -1).view(b, h, w)
        padded = F.pad(seen, (1, 1, 1, 1), value=-1)
        sides = padded[:, :-2, 1:-1], padded[:, 2:, 1:-1], padded[:, 1:-1, :-2], padded[:, 1:-1, 2:]
        best = torch.stack([seen, *sides]).amax(0).flatten(1)
        best = torch.where(inside, best, own)
        roots = roots.scatter_reduce(1, roots, best, "amax")
        roots = torch.maximum(roots, best)
        roots = roots.gather(1, roots)
        roots = roots.gather(1, roots)
    return roots.view(b, h, w)
