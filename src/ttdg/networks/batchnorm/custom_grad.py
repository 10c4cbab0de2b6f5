"""BatchNorm layers with given statistics that add the gradient of a loss of their input to their own.

Left to autograd these are three calls a layer: the layer's gradient, the loss's, their sum. Here they are two.
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
    """An input of a layer, and the mean and variance it was normalised by, which are constants to the gradient and need
    be known only when `met_with_gradient` is told."""

    layer: _BatchNorm
    x: Tensor
    mean: Tensor
    var: Tensor
    line: tuple[Tensor, Tensor, Tensor] | None = None  # a, c, slope: the gradient is a·x + c + slope·g


def watched_batch_norm(met: LayerInput, normalise: Callable[[Tensor], Tensor]) -> tuple[LayerInput, Tensor]:
    """With the layer's answer, which passes on a gradient once `met_with_gradient` was told of it."""
    return met, _Watched.apply(met.x, met, normalise)  # type: ignore[no-untyped-call]


def met_with_gradient(
    loss: Float[Tensor, ""],
    a: Float[Tensor, "#b channels"],
    c: Float[Tensor, "#b channels"],
    met: Sequence[tuple[LayerInput, Tensor]],
) -> Float[Tensor, ""]:
    """The value `loss`, whose gradient at the inputs of frozen layers is a·x + c beside what comes through them. To be
    asked for once, and of all of them: a layer that was watched has no gradient without."""
    mets, answers = zip(*met, strict=True)
    return _Root.apply(loss, torch.stack([a, c]), mets, *answers)  # type: ignore[no-untyped-call,no-any-return]


class _Root(torch.autograd.Function):
    """Tells the layers their lines; the answers are there so that it comes before them, and get no gradient."""

    @staticmethod
    def forward(
        ctx: Any, loss: Tensor, lines: Tensor, mets: Sequence[LayerInput], *answers: Tensor
    ) -> Tensor:
        slopes = torch._foreach_add([met.var for met in mets], [met.layer.eps for met in mets])
        torch._foreach_pow_(slopes, -0.5)
        if affine := [i for i, met in enumerate(mets) if met.layer.affine]:
            torch._foreach_mul_([slopes[i] for i in affine], [mets[i].layer.weight for i in affine])
        ctx.save_for_backward(lines, *slopes)
        ctx.mets = mets
        return loss.clone()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        (lines, *slopes), mets = ctx.saved_tensors, ctx.mets
        layers = (lines * gradient).split([met.x.shape[1] for met in mets], -1)
        for met, layer, slope in zip(mets, layers, slopes, strict=True):
            ones = [None] * (met.x.ndim - 2)
            a, c = layer[(..., *ones)]
            met.line = a, c, slope[(..., *ones)]
        return (None,) * (3 + len(mets))


class _Watched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, met: LayerInput, normalise: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.set_materialize_grads(False)  # the last layer's answer has no part in the loss
        ctx.met = met
        return normalise(x)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor, None, None]:
        a, c, slope = ctx.met.line
        found = torch.addcmul(c, a, ctx.met.x)
        return (found if gradient is None else found.addcmul_(gradient, slope)), None, None
