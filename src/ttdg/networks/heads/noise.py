"""A discriminator that is trained on source features to tell strong from weak noise, for NC-TTT."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.types import Part

LEVEL = 2  # pyramid level of the features
WIDTH = 256  # channels after the projection
HIDDEN = 4  # hidden channels
SIGMAS = (0.1, 0.015)  # standard deviations of strong and of weak noise


class NoiseDiscriminator(nn.Module):
    """Predicts for each position of a feature map the logit of "strong noise".

    The projection is fixed: it consists of the principal axes along which source features vary least, in units of the
    mean standard deviation. A learned projection becomes degenerate: noise outside its range is easy to detect, and the
    discriminator then carries no information about the features.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(channels, width, 1).requires_grad_(False)
        self.judge = nn.Sequential(
            nn.Conv2d(width, HIDDEN, 1), nn.BatchNorm2d(HIDDEN), nn.LeakyReLU(0.2), nn.Conv2d(HIDDEN, 1, 1)
        )

    def calibrate(self, features: Float[Tensor, "b c h w"]) -> None:
        """Set the projection from source features, and scale the first layer to favour axes of low variance."""
        rows = features.movedim(1, -1).flatten(0, -2)
        mean, covariance = rows.mean(0), torch.cov(rows.T)
        variances, axes = torch.linalg.eigh(covariance)  # ascending
        scale = variances.clamp(min=0).mean().sqrt().clamp(min=1e-6)
        projection = axes.T[: self.project.out_channels] / scale
        self.project.load_state_dict({"weight": projection[:, :, None, None], "bias": -projection @ mean})
        deviations = variances.clamp(min=0).sqrt()[: len(projection)] / scale
        self.judge[0].weight.data /= (deviations + SIGMAS[0])[:, None, None]

    def forward(self, features: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 1 h w"]:
        """Logits of strong noise."""
        return self.judge(self.project(features))

    def to_part(self, level: int) -> Part:
        """The discriminator as a part; `level` is the pyramid level of its features."""
        channels, width = self.project.in_channels, self.project.out_channels
        return Part(self.state_dict(), {"level": level, "channels": channels, "width": width})

    @classmethod
    def from_part(cls, part: Part, device: torch.device) -> "NoiseDiscriminator":
        """The frozen discriminator that `to_part` stored."""
        made = cls(part.settings["channels"], part.settings["width"])
        made.load_state_dict(dict(part.tensors))
        return made.to(device).eval().requires_grad_(False)


def large_noise_probability(
    squared: Float[Tensor, "*n"], dimension: int, sigmas: tuple[float, float] = SIGMAS
) -> Float[Tensor, "*n"]:
    """Probability that noise n has the larger σ, given ‖n‖²; values below 10⁻⁶ are set to 0.

    P(σ₁ | ‖n‖²) = sigmoid(½(1/σ₂² − 1/σ₁²)‖n‖² − D ln(σ₁/σ₂)) for noise of dimension D.
    """
    large, small = sigmas
    logit = 0.5 * (1 / small**2 - 1 / large**2) * squared - dimension * math.log(large / small)
    y = logit.sigmoid()
    return torch.where(y < 1e-6, 0.0, y)


def noise_loss(discriminator: NoiseDiscriminator, features: Tensor, generator: torch.Generator) -> Tensor:
    """L_nc: binary cross-entropy to the soft target, over one copy with strong and one with weak noise."""
    h = discriminator.project(features)
    noise = torch.cat(
        [s * torch.randn(h.shape, generator=generator, device=h.device, dtype=h.dtype) for s in SIGMAS]
    )
    target = large_noise_probability(noise.square().sum(1, keepdim=True), h.shape[1])
    # Both copies are in one batch; separate batches would let BatchNorm remove the difference in scale.
    logits = discriminator.judge(h.repeat(2, 1, 1, 1) + noise)
    return F.binary_cross_entropy_with_logits(logits, target)
