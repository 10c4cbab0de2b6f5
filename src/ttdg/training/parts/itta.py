"""The part of ITTA: f_w, a learnt weighting of the consistency loss."""

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.networks import pyramid
from ttdg.networks.heads.consistency import ElementWiseNet, MixStyle, pooled_features
from ttdg.networks.losses import dice_cross_entropy
from ttdg.training.parts.fitting import PartFit
from ttdg.types import Part

LAYERS = 10  # layers of f_w


def fit_itta(job: PartFit) -> Part:
    """Fit f_w so that the consistency loss and the supervised loss have similar gradients on the encoder."""
    producers = [producer for producer, _ in pyramid.level_modules(job.network)]
    encoder = [p.requires_grad_(True) for p in pyramid.parameters_before(job.network, producers[-1])]
    measure, styles = ElementWiseNet((job.channels()[-1],), LAYERS), MixStyle(producers, job.seed)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        features = styles.encode_both(job.network, images)
        logits = job.network.decode(features)
        z, restyled = pooled_features(features)
        supervised = dice_cross_entropy(logits, labels.repeat(2, 1, 1))
        target = torch.autograd.grad(supervised, encoder, retain_graph=True)
        consistency = measure(restyled - z).square().mean()
        return gradient_alignment_loss(torch.autograd.grad(consistency, encoder, create_graph=True), target)

    job.fit(measure, loss)
    return measure.to_part()


def gradient_alignment_loss(
    consistency: tuple[Tensor, ...], supervised: tuple[Tensor, ...]
) -> Float[Tensor, ""]:
    """Return 0.1 · mean (norm(g_reg) − norm(g_cls))², where norm standardises over all parameters.

    The loss is 0 if one gradient is a positive multiple of the other.
    """
    reg, cls = (torch.cat([g.flatten() for g in gradients]) for gradients in (consistency, supervised))
    reg, cls = ((g - g.mean()) / (g.std() + 1e-12) for g in (reg, cls))
    return 0.1 * (reg - cls.detach()).square().mean()
