"""MixStyle (Zhou et al. 2021): feature statistics of training images mixed between the images of a batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from ttdg.networks import EncoderNetwork, pyramid
from ttdg.training.recipe import Recipe

LEVELS = (1, 2)  # levels of the encoder's pyramid that are mixed: the outputs of its first two stages
ALPHA = 0.1  # parameter of Beta(α, α), the distribution of the weights

Weights = Float[Tensor, "b levels"]  # weight of an image's own statistics
Partners = Int[Tensor, "b levels"]  # rows of the global batch


def draw_styles(recipe: Recipe, step: int) -> tuple[Weights, Partners]:
    """Draw weights and partners for the global batch of `step`; each level is mixed with probability `mixstyle`.

    Weights of 1 leave a level unchanged. The result depends on the recipe and the step only.
    """
    rng = np.random.default_rng([recipe.seed % 2**63, step])
    shape = (recipe.batch, len(LEVELS))
    mixed = rng.random(len(LEVELS)) < recipe.mixstyle
    weights = np.where(mixed, rng.beta(ALPHA, ALPHA, shape), 1.0)
    partners = np.stack([rng.permutation(recipe.batch) for _ in LEVELS], 1)
    return torch.from_numpy(weights).float(), torch.from_numpy(partners)


class StyleMixing:
    """Hooks that mix statistics in a network's encoder, in training mode only. It adds no parameters."""

    def __init__(self, network: EncoderNetwork) -> None:
        self.drawn: tuple[Weights, Partners] | None = None
        training = network.training
        producers = [producer for producer, _ in pyramid.level_modules(network.eval())]
        network.train(training)
        for column, level in enumerate(LEVELS):
            producers[level].register_forward_hook(self._hook(column))

    @contextmanager
    def using(self, weights: Weights, partners: Partners) -> Iterator[None]:
        """Mix by these weights and partners in the forward passes inside the block."""
        self.drawn = weights, partners
        try:
            yield
        finally:
            self.drawn = None

    def _hook(self, column: int) -> Any:
        def hook(module: nn.Module, inputs: Any, x: Tensor) -> Tensor | None:
            if self.drawn is None or not module.training:
                return None
            weights, partners = self.drawn
            return mix_features(x, weights[:, column], partners[:, column])

        return hook


def mix_features(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "b"], partner: Int[Tensor, "b"]
) -> Float[Tensor, "b c h w"]:
    """Replace each channel's mean and deviation by their mixture with those of the partner.

    Statistics are constants for the gradient, and computed in float32. Weight 1 returns `x` exactly.
    """
    var, mean = torch.var_mean(x.detach().float(), (2, 3), correction=0, keepdim=True)
    std = (var + 1e-6).sqrt()
    other_mean, other_std = (_gathered(values)[partner] for values in (mean, std))
    weight = weight[:, None, None, None]
    scale = weight + (1 - weight) * other_std / std
    offset = weight * mean + (1 - weight) * other_mean - scale * mean
    return (x * scale + offset).to(x.dtype)


def _gathered(values: Tensor) -> Tensor:
    """Concatenate the rows of all processes."""
    if not (dist.is_available() and dist.is_initialized()):
        return values
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values.contiguous())
    return torch.cat(parts)
