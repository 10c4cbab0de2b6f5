"""The objective of source training, L_sup + w · L(𝒰), over the network and its morphology prior."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ttdg.networks import EncoderNetwork, feature_maps
from ttdg.networks.losses import LOSSES
from ttdg.prior import LiteralPrior, MorphologyPrior, literal_loss, prior_loss
from ttdg.training.mixstyle import Partners, StyleMixing, Weights


class Learner(nn.Module):
    """Computes the training loss in one forward pass, as distributed training requires.

    Without a prior the loss is L_sup alone. `mixstyle` installs MixStyle in the network's encoder.
    """

    def __init__(
        self,
        network: EncoderNetwork,
        prior: MorphologyPrior | LiteralPrior | None,
        loss: str,
        weight: float,
        mixstyle: bool = False,
    ) -> None:
        super().__init__()
        self.styles = StyleMixing(network) if mixstyle else None
        self.network, self.prior = network, prior
        self.supervised, self.weight = LOSSES[loss], weight
        if prior is not None:
            for unused in (prior.edges, prior.affinity):  # L(𝒰) has no gradient with respect to them
                unused.requires_grad_(False)

    def forward(
        self,
        images: Float[Tensor, "b c h w"],
        labels: Int[Tensor, "b h w"],
        weights: Weights | None = None,
        partners: Partners | None = None,
    ) -> Float[Tensor, ""]:
        """Return the loss of a batch of normalised images; `weights` and `partners` are those of MixStyle."""
        if self.styles is None or weights is None or partners is None:
            return self._loss(images, labels)
        with self.styles.using(weights, partners):
            return self._loss(images, labels)

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        if self.prior is None:
            return self.supervised(self.network(images).float(), labels)
        logits, maps = feature_maps(self.network, images)
        with torch.autocast(images.device.type, enabled=False):
            if isinstance(self.prior, LiteralPrior):
                matching = literal_loss(self.prior, maps, labels)
            else:
                matching = prior_loss(self.prior, maps, labels)
            return self.supervised(logits.float(), labels) + self.weight * matching
