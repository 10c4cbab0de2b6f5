"""A discriminator of noise in features, as NC-TTT needs it: it learns on source features to tell a little from much."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.types import Part

LEVEL, WIDTH, HIDDEN = 2, 256, 4
SIGMAS = (0.1, 0.015)  # much noise and little


class Discriminator(nn.Module):
    """How noisy does each place of a feature map look? The logit of "much noise".

    The projection is fixed: the principal axes along which source features vary least, in units of their mean standard
    deviation. One that is learnt makes itself degenerate, noise outside its range being easy to see, and then says
    nothing of the features.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(channels, width, 1).requires_grad_(False)
        self.judge = nn.Sequential(
            nn.Conv2d(width, HIDDEN, 1), nn.BatchNorm2d(HIDDEN), nn.LeakyReLU(0.2), nn.Conv2d(HIDDEN, 1, 1)
        )

    def calibrate(self, features: Float[Tensor, "b c h w"]) -> None:
        """Set the projection by source features; the first layer begins with their quiet axes, which tell most."""
        rows = features.movedim(1, -1).flatten(0, -2)
        mean, covariance = rows.mean(0), torch.cov(rows.T)
        variances, axes = torch.linalg.eigh(covariance)  # least first
        scale = variances.clamp(min=0).mean().sqrt().clamp(min=1e-6)
        kept = axes.T[: self.project.out_channels] / scale
        self.project.load_state_dict({"weight": kept[:, :, None, None], "bias": -kept @ mean})
        loudness = variances.clamp(min=0).sqrt()[: len(kept)] / scale
        self.judge[0].weight.data /= (loudness + SIGMAS[0])[:, None, None]

    def forward(self, features: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 1 h w"]:
        return self.judge(self.project(features))

    def to_part(self, level: int) -> Part:
        channels, width = self.project.in_channels, self.project.out_channels
        return Part(self.state_dict(), {"level": level, "channels": channels, "width": width})

    @classmethod
    def from_part(cls, part: Part, device: torch.device) -> "Discriminator":
        made = cls(part.settings["channels"], part.settings["width"])
        made.load_state_dict(dict(part.tensors))
        return made.to(device).eval().requires_grad_(False)


def much(
    squared: Float[Tensor, "*n"], dimension: int, sigmas: tuple[float, float] = SIGMAS
) -> Float[Tensor, "*n"]:
    """P(noise n came from σ₁ | ‖n‖²) = sigmoid(½(1/σ₂² − 1/σ₁²)‖n‖² − D ln(σ₁/σ₂)), below 10⁻⁶ set to 0."""
    large, small = sigmas
    logit = 0.5 * (1 / small**2 - 1 / large**2) * squared - dimension * math.log(large / small)
    y = logit.sigmoid()
    return torch.where(y < 1e-6, 0.0, y)


def noise_loss(discriminator: Discriminator, features: Tensor, generator: torch.Generator) -> Tensor:
    """L_nc: binary cross-entropy to the soft target, over a copy with much noise and one with little."""
    h = discriminator.project(features)
    noise = torch.cat(
        [s * torch.randn(h.shape, generator=generator, device=h.device, dtype=h.dtype) for s in SIGMAS]
    )
    target = much(noise.square().sum(1, keepdim=True), h.shape[1])
    judged = discriminator.judge(h.repeat(2, 1, 1, 1) + noise)  # together, or BatchNorm would hide the scale
    return F.binary_cross_entropy_with_logits(judged, target)
