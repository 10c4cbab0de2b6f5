"""What source training minimises: L_sup + w · L(𝒰), the network and its morphology prior together."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ttdg.networks import Segmenter
from ttdg.prior import MorphologyPrior, feature_maps, prior_loss
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
        logits, maps = feature_maps(self.network, images)
        with torch.autocast(images.device.type, enabled=False):
            matching = prior_loss(self.prior, {name: x.float() for name, x in maps.items()}, labels)
            return self.supervised(logits.float(), labels) + self.weight * matching
