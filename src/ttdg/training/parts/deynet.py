"""The part of DeY-Net: a denoising decoder on the frozen encoder."""

import torch
from torch import Tensor

from ttdg.data.transforms import IMAGENET_MEAN, IMAGENET_STD
from ttdg.networks.heads.denoiser import Denoiser, corrupt, denoising_loss
from ttdg.training.parts.fitting import PartFit
from ttdg.types import Part


def fit_deynet(job: PartFit) -> Part:
    """Fit the denoising decoder: L1 loss at blind spots, from the features of the corrupted image."""
    imagenet = job.benchmark.normalisation == "imagenet"
    mean, std = (list(x) for x in ((IMAGENET_MEAN, IMAGENET_STD) if imagenet else ((0.0,) * 3, (1.0,) * 3)))
    shift, scale = (torch.tensor(x, device=job.device).view(3, 1, 1) for x in (mean, std))
    denoiser, generator = Denoiser(job.channels(), 3), job.generator()

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        corrupted, blind_spots = corrupt(images, generator)
        with torch.no_grad():
            features = job.network.encode(corrupted)
        return denoising_loss(denoiser(features, images), images * scale + shift, blind_spots)

    job.fit(denoiser, loss)
    return denoiser.to_part(mean, std)
