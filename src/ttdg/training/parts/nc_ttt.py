"""The part of NC-TTT: a discriminator of noise in the features of an early encoder level."""

import itertools

import torch
from torch import Tensor

from ttdg.networks import pyramid
from ttdg.networks.heads.noise import LEVEL, WIDTH, NoiseDiscriminator, noise_loss
from ttdg.training.parts.fitting import PartFit
from ttdg.types import Part

RATE = 3e-2  # initial learning rate of Adam; high, because the discriminator has few weights
CALIBRATION_BATCHES = 8  # batches from which the spread of source features is estimated


def fit_nc_ttt(job: PartFit) -> Part:
    """Calibrate the discriminator on source features, then train it to tell two noise levels apart."""
    producer, level = pyramid.level_modules(job.network)[LEVEL]
    discriminator = NoiseDiscriminator(level.shape[1], min(WIDTH, level.shape[1])).to(job.device)
    generator = job.generator()
    with torch.no_grad():
        batches = itertools.islice(job.batches(), CALIBRATION_BATCHES)
        features = torch.cat([pyramid.encode_to(job.network, producer, images) for images, _ in batches])
    discriminator.calibrate(features)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            features = pyramid.encode_to(job.network, producer, images)
        return noise_loss(discriminator, features, generator)

    job.fit(discriminator, loss, RATE)
    return discriminator.to_part(LEVEL)
