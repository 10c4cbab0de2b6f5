"""BatchNorm layers whose backward pass also adds the gradient of a loss on their input.

The loss depends on the means and variances of layer inputs x, so that its gradient at each x is a·x + c (see
`batched`). For each layer autograd would launch three kernels: the gradient through the layer, the gradient of the
loss, and their sum. Here both gradients and their sum take two launches.

Usage: `batch_norm_with_added_gradient` runs each layer; `loss_with_fused_gradient` then creates the loss. The backward
pass of the loss runs first and stores a and c at each layer's `LayerInput`; the backward pass of the layers reads them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass(eq=False)
class LayerInput:
    """Input of a BatchNorm layer with the mean and variance that normalise it.

    Mean and variance are constants for the gradient. Their values are first read by `loss_with_fused_gradient`.
    """

    layer: _BatchNorm
    x: Tensor
    mean: Tensor
    var: Tensor
    terms: tuple[Tensor, Tensor, Tensor] | None = (
        None  # a, c, slope: the gradient is a·x + c + slope·(output's)
    )


def batch_norm_with_added_gradient(layer_input: LayerInput, normalise: Callable[[Tensor], Tensor]) -> Tensor:
    """The output of `normalise`. Its gradient exists only if `loss_with_fused_gradient` receives this input."""
    return _AddedGradient.apply(layer_input.x, layer_input, normalise)  # type: ignore[no-untyped-call,no-any-return]


def loss_with_fused_gradient(
    loss: Float[Tensor, ""],
    a: Float[Tensor, "#b channels"],
    c: Float[Tensor, "#b channels"],
    collected: Sequence[tuple[LayerInput, Tensor]],
) -> Float[Tensor, ""]:
    """The value `loss`, with the gradient a·x + c at each layer input, added to the gradient through the layer.

    The layers must be frozen. Call this once for each forward pass, with all layers of the pass.

    Args:
        loss: value of the loss.
        a: coefficients for the channels of all layers.
        c: coefficients for the channels of all layers.
        collected: input and output of each layer.
    """
    inputs, outputs = zip(*collected, strict=True)
    return _Loss.apply(loss, torch.stack([a, c]), inputs, *outputs)  # type: ignore[no-untyped-call,no-any-return]


class _Loss(torch.autograd.Function):
    """Stores the gradient terms at the layers.

    The outputs of the layers are arguments so that autograd runs this backward pass first; they get no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, loss: Tensor, coefficients: Tensor, inputs: Sequence[LayerInput], *outputs: Tensor
    ) -> Tensor:
        slopes = torch._foreach_add([x.var for x in inputs], [x.layer.eps for x in inputs])
        torch._foreach_pow_(slopes, -0.5)
        if affine := [i for i, x in enumerate(inputs) if x.layer.affine]:
            torch._foreach_mul_([slopes[i] for i in affine], [inputs[i].layer.weight for i in affine])
        ctx.save_for_backward(coefficients, *slopes)
        ctx.inputs = inputs
        return loss.clone()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        (coefficients, *slopes), inputs = ctx.saved_tensors, ctx.inputs
        by_layer = (coefficients * gradient).split([x.x.shape[1] for x in inputs], -1)
        for layer_input, layer, slope in zip(inputs, by_layer, slopes, strict=True):
            spatial = [None] * (layer_input.x.ndim - 2)
            a, c = layer[(..., *spatial)]
            layer_input.terms = a, c, slope[(..., *spatial)]
        return (None,) * (3 + len(inputs))


class _AddedGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, layer_input: LayerInput, normalise: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.set_materialize_grads(False)  # the last layer's output does not contribute to the loss
        ctx.layer_input = layer_input
        return normalise(x)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor, None, None]:
        a, c, slope = ctx.layer_input.terms
        total = torch.addcmul(c, a, ctx.layer_input.x)
        return (total if gradient is None else total.addcmul_(gradient, slope)), None, None
