"""BatchNorm in training mode, and the distance of its batch statistics from the source, which PASS minimises."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.batched import (
    channel_weights_and_counts,
    concat_channels,
    loss_with_linear_gradient,
)

VARIANCE_WEIGHT = 0.01  # weight of the variances in the loss


class AlignmentMode:
    """Batch statistics that also update the running statistics, as in training.

    If `collected` is a list, each layer appends itself, its input, and the input's mean and inverse standard deviation.
    """

    def __init__(self, network: nn.Module) -> None:
        self.collected: list[tuple[_BatchNorm, Tensor, Tensor, Tensor]] | None = None
        self.source = {
            layer: tuple(buffer.clone() for buffer in batchnorm.running_statistics(layer))
            for layer in batchnorm.layers(network)
        }

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise `x` with its statistics and update the running statistics."""
        if self.collected is None or batchnorm.has_too_few_values(x):
            return batchnorm.TRAIN(layer, x)
        mean, var = batchnorm.running_statistics(layer)
        affine, momentum = layer._parameters, batchnorm.TRAIN.momentum
        y, batch_mean, inverse_std = torch.native_batch_norm(
            x, affine["weight"], affine["bias"], mean, var, True, momentum, layer.eps
        )
        self.collected.append((layer, x, batch_mean, inverse_std))
        return y

    def misfit(self) -> Float[Tensor, ""] | None:
        """Σ_layers mean_channels |μ − μ_source| + 0.01 |v − v_source| over the collected inputs, with its gradient.

        The statistics are those that BatchNorm computed in the forward pass. None if no input was collected.
        """
        if not self.collected:
            return None
        layers, inputs, means, inverse_stds = zip(*self.collected, strict=True)
        with torch.no_grad():
            share, count = channel_weights_and_counts(inputs, len(inputs[0]))
            biased = torch._foreach_sub(torch._foreach_pow(inverse_stds, -2), [layer.eps for layer in layers])
            mean, var = concat_channels(means), concat_channels(biased) * (count / (count - 1))
            source_mean, source_var = (
                concat_channels(self.source[layer][i] for layer in layers) for i in (0, 1)
            )
            weights = torch.stack([share, VARIANCE_WEIGHT * share])
            difference = torch.stack([mean - source_mean, var - source_var])
            by_mean, by_var = difference.sgn() * weights  # derivatives of the loss by mean and by variance
            a = 2 * by_var / (count - 1)
            c = torch.addcmul(by_mean / count, a, mean, value=-1)
            loss = (difference.abs() * weights).sum()
        return loss_with_linear_gradient(loss, a[None], c[None], inputs)
