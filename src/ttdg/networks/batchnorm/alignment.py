"""BatchNorm in training, and how far what it met lies from the source: what PASS brings its prompts down."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.batched import channels, side_by_side, with_gradient

VARIANCE = 0.01  # weight of the variances in the statistics loss


class AlignmentMode:
    """Batch statistics that move the running ones; `met` collects each layer's input and its statistics."""

    def __init__(self, network: nn.Module) -> None:
        self.met: list[tuple[_BatchNorm, Tensor, Tensor, Tensor]] | None = None
        self.source = {
            layer: tuple(b.clone() for b in batchnorm.running(layer)) for layer in batchnorm.layers(network)
        }

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        if self.met is None or batchnorm.has_too_few_values(x):
            return batchnorm.TRAIN(layer, x)
        mean, var = batchnorm.running(layer)
        affine, momentum = layer._parameters, batchnorm.TRAIN.momentum
        answer, own_mean, inverse_std = torch.native_batch_norm(
            x, affine["weight"], affine["bias"], mean, var, True, momentum, layer.eps
        )
        self.met.append((layer, x, own_mean, inverse_std))
        return answer

    def misfit(self) -> Float[Tensor, ""] | None:
        """Σ_layers mean_channels |μ − μ_source| + 0.01 |v − v_source| of what was met, with its gradient at each
        layer's input. The statistics are those BatchNorm has worked out for itself."""
        if not self.met:
            return None
        layers, inputs, means, inverse_stds = zip(*self.met, strict=True)
        with torch.no_grad():
            share, count = channels(inputs, len(inputs[0]))
            biased = torch._foreach_sub(torch._foreach_pow(inverse_stds, -2), [layer.eps for layer in layers])
            mean, var = side_by_side(means), side_by_side(biased) * (count / (count - 1))
            source_mean, source_var = (
                side_by_side(self.source[layer][i] for layer in layers) for i in (0, 1)
            )
            weights = torch.stack([share, VARIANCE * share])
            apart = torch.stack([mean - source_mean, var - source_var])
            by_mean, by_var = apart.sgn() * weights
            a = 2 * by_var / (count - 1)
            c = torch.addcmul(by_mean / count, a, mean, value=-1)
            loss = (apart.abs() * weights).sum()
        return with_gradient(loss, a[None], c[None], inputs)
