"""L(𝒰), the loss that trains the universe embeddings (Eq. 9, in the form of docs/decisions.md)."""

from dataclasses import fields

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from ttdg.graphs import Nodes
from ttdg.matching import universe_loss
from ttdg.prior.module import MorphologyPrior


def prior_loss(
    prior: MorphologyPrior, maps: dict[str, Tensor], labels: Int[Tensor, "b h w"]
) -> Float[Tensor, ""]:
    """L(𝒰): nodes of the true structures, matched to the universe jointly, should score highest where they match."""
    nodes = prior.nodes(prior.project(maps, labels.shape[1:]), labels)
    together, mine = gather_nodes(nodes)
    U = prior.match(together)[mine]
    loss = universe_loss(nodes.features, prior.points_of_universe(), U, nodes.mask, tau=prior.spec.tau)
    share = nodes.mask.sum() * (len(together.mask) // len(nodes.mask)) / together.mask.sum().clamp(min=1)
    return loss * share  # the mean over processes is then the mean over all nodes


def gather_nodes(nodes: Nodes) -> tuple[Nodes, slice]:
    """All processes' nodes, since the graphs of the whole batch are matched jointly, and which of them are ours."""
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
