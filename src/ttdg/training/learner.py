"""What source training minimises: L_sup + w · L(𝒰), the network and its morphology prior together."""

from dataclasses import fields

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from ttdg.graphs import Nodes
from ttdg.matching import universe_loss
from ttdg.networks import Segmenter
from ttdg.prior import MorphologyPrior, maps_of
from ttdg.training.losses import LOSSES


class Learner(nn.Module):
    """One module with one forward pass, so that several processes can share the work."""

    def __init__(self, network: Segmenter, prior: MorphologyPrior | None, loss: str, weight: float) -> None:
        super().__init__()
        self.network, self.prior = network, prior
        self.supervised, self.weight = LOSSES[loss], weight
        for untrained in () if prior is None else (prior.edges, prior.affinity):  # L(𝒰) does not reach them
            untrained.requires_grad_(False)

    def forward(self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, "b h w"]) -> Float[Tensor, ""]:
        if self.prior is None:
            return self.supervised(self.network(images).float(), labels)
        logits, maps = maps_of(self.network, images)
        with torch.autocast(images.device.type, enabled=False):
            matching = prior_loss(self.prior, {name: x.float() for name, x in maps.items()}, labels)
            return self.supervised(logits.float(), labels) + self.weight * matching


def prior_loss(
    prior: MorphologyPrior, maps: dict[str, Tensor], labels: Int[Tensor, "b h w"]
) -> Float[Tensor, ""]:
    """L(𝒰): nodes of the true structures, matched to the universe jointly, should score highest where they match."""
    nodes = prior.nodes(prior.project(maps, labels.shape[1:]), labels)
    together, mine = everyones(nodes)
    U = prior.match(together)[mine]
    loss = universe_loss(nodes.features, prior.points_of_universe(), U, nodes.mask, tau=prior.spec.tau)
    share = nodes.mask.sum() * (len(together.mask) // len(nodes.mask)) / together.mask.sum().clamp(min=1)
    return loss * share  # the mean over processes is then the mean over all nodes


def everyones(nodes: Nodes) -> tuple[Nodes, slice]:
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
