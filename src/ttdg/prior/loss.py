"""L(𝒰), the loss that trains the universe: the cross-entropy form of Eq. 9 (docs/decisions.md)."""

from dataclasses import fields

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from ttdg.matching import universe_loss
from ttdg.prior.module import MorphologyPrior
from ttdg.prior.sampling import Nodes


def prior_loss(
    prior: MorphologyPrior, maps: dict[str, Tensor], labels: Int[Tensor, "b h w"]
) -> Float[Tensor, ""]:
    """L(𝒰) of a batch: trains nodes of the true structures to score highest at the universe points they match.

    Args:
        prior: the prior to train.
        maps: feature maps of the batch, as `feature_maps` returns them.
        labels: true labels of the batch.
    """
    nodes = prior.nodes(prior.project(maps, labels.shape[1:]), labels)
    all_nodes, rows = gather_nodes(nodes)
    U = prior.match(all_nodes)[rows]
    loss = universe_loss(nodes.features, prior.universe_points(), U, nodes.mask, tau=prior.spec.tau)
    # With this weight the mean over processes is the mean over all nodes.
    weight = nodes.mask.sum() * (len(all_nodes.mask) // len(nodes.mask)) / all_nodes.mask.sum().clamp(min=1)
    return loss * weight


def gather_nodes(nodes: Nodes) -> tuple[Nodes, slice]:
    """Nodes of all processes, because the whole batch is matched jointly, and the rows of this process."""
    if not (dist.is_available() and dist.is_initialized()):
        return nodes, slice(None)
    parts = []
    for field in fields(nodes):
        own = getattr(nodes, field.name).detach().contiguous()
        gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, own)
        parts.append(torch.cat(gathered))
    start = dist.get_rank() * len(nodes.mask)
    return Nodes(*parts), slice(start, start + len(nodes.mask))
