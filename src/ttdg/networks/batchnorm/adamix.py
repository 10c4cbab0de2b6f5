"""AdaMixBN: source and batch statistics mixed layer by layer as the data ask for, then folded into γ and β.

A layer's α is known only when all layers before it are normalised, so nothing of it can be done for all layers at
once. Where the host decides the speed it is therefore written for few calls: the statistics of images, batch and
source are rows of one table, which BatchNorm's own kernel fills in place in two calls; α and the mixture are seven
more, and these nine a layer are what the method costs beyond its passes. Folding does not lie between a layer and the
next, and is done for all of them together after the pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.networks import batchnorm

TINY = (
    1e-18  # images lie apart from batch and source by this much at least, so that no 0/0 arises: α is 1 there
)


class Rows:
    """Views of a layer's table: variances, means, deviations and TINY of the images, then batch, then source."""

    def __init__(self, table: Float[Tensor, "4 rows c"]) -> None:
        b, self.table = table.shape[1] - 2, table
        self.variances, self.deviations, self.means = table[0], table[2], table[1, :b]
        self.own = table[1, :b].view(-1), table[0, :b].view(-1)
        self.batch_mean, self.batch_var = self.batch = table[1, b], table[0, b]
        self.mixing = table[:2, -1], table[:2, -2]
        both = (3, b + 2, 2, -1)
        self.pairs = table[1:, :, None].expand(*both), table[1:, None, -2:].expand(*both)


def blank(layer: _BatchNorm, images: int) -> Float[Tensor, "4 rows c"]:
    """A table that knows the source alone."""
    mean, var = batchnorm.running(layer)
    table = mean.new_zeros(4, images + 2, len(mean))
    table[0, -1], table[1, -1] = var, mean
    table[3, :images] = TINY
    return table


def mixed_statistics(x: Tensor, rows: Rows) -> Float[Tensor, "2 c"]:
    """The mixed variance (unbiased) and mean. With momentum 1 the running statistics become those of the input, and
    images next to each other along the channels have each their own."""
    torch.batch_norm_update_stats(x, *rows.batch, 1.0)
    if x[0, 0].numel() > 1:
        torch.batch_norm_update_stats(x.reshape(1, -1, *x.shape[2:]), *rows.own, 1.0)
    else:
        rows.means.copy_(x.flatten(1))
    torch.sqrt(rows.variances, out=rows.deviations)
    return torch.lerp(*rows.mixing, batch_weight(*rows.pairs))


def batch_weight(
    points: Float[Tensor, "s rows 2 c"], batch_and_source: Float[Tensor, "s rows 2 c"]
) -> Float[Tensor, ""]:
    """1 − α: with d the squared distance of two points, the mean over images of d_bs / (d_bs + d_is + d_ib)."""
    to_both = F.mse_loss(points, batch_and_source, reduction="none").sum((0, 2, 3))
    shift = to_both[-2]  # of the batch: d_bs
    return (shift / (to_both[:-2] + shift)).mean()


class AdaMix:
    """α·source + (1−α)·batch statistics, α from the data; nothing is written.

    γ and β take part as copies, through which the gradient passes: they may be folded before it is asked for."""

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        mean, var = batchnorm.running(layer)
        if not batchnorm.has_too_few_values(x):
            with torch.no_grad():
                var, mean = mixed_statistics(x, Rows(blank(layer, len(x))))
        weight, bias = (None if p is None else p.clone() for p in (layer.weight, layer.bias))
        return F.batch_norm(x, mean, var, weight, bias, eps=layer.eps)


ADAMIX = AdaMix()


@dataclass
class MixedLayer:
    """A layer, and by what it was normalised; what its gradient needs comes with the folding."""

    layer: _BatchNorm
    count: int
    rows: Rows
    var: Tensor
    mean: Tensor
    inverse_std: Tensor | None = None


class Folding:
    """ADAMIX until `start`. The next pass gives the same answers, but its gradient is that of a layer which divides by
    the batch's own statistics and has γ and β moved to make up for it. `fold` moves them, and from then on the layers
    are such. A layer without γ and β has nothing to fold, nor has a second input of a layer in the same pass."""

    def __init__(self, network: nn.Module) -> None:
        self.layers = [layer for layer in batchnorm.layers(network) if layer.affine]
        self._tables: dict[
            Any, tuple[Tensor, Tensor, list[Rows]]
        ] = {}  # kept: a recording goes on using them
        self.reset()

    def reset(self) -> None:
        self.folded, self._met, self._left = False, dict[_BatchNorm, MixedLayer](), dict[_BatchNorm, Rows]()

    def start(self, images: int) -> None:
        """Before a pass, with γ and β of the source."""
        mean, _ = batchnorm.running(self.layers[0])
        if (key := (images, mean.device, mean.dtype)) not in self._tables:
            self._tables[key] = _tables(self.layers, images)
        work, blanks, rows = self._tables[key]
        work.copy_(blanks)
        self.reset()
        self._left.update(zip(self.layers, rows, strict=True))

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        if self.folded and layer.affine:
            return batchnorm.BATCH(layer, x)
        rows = self._left.pop(layer, None)
        if rows is None or batchnorm.has_too_few_values(x):
            return ADAMIX(layer, x)
        with torch.no_grad():
            var, mean = mixed_statistics(x, rows)
        met = self._met[layer] = MixedLayer(layer, x.numel() // x.shape[1], rows, var, mean)
        return _Folded.apply(x, layer.weight, layer.bias, met)  # type: ignore[no-untyped-call,no-any-return]

    @torch.no_grad()
    def fold(self) -> None:
        """(x−μ̄)/√(v̄+ε)·γ + β is (x−μ)/√(v+ε)·γ' + β', with v the biased variance of the batch."""
        met = list(self._met.values())
        self.reset()
        self.folded = True
        if not met:  # maps too small for statistics
            return
        weights: list[Tensor] = [m.layer.weight for m in met]
        biases: list[Tensor] = [m.layer.bias for m in met]
        biased = torch._foreach_mul([m.rows.batch_var for m in met], [(m.count - 1) / m.count for m in met])
        roots = torch._foreach_add([*biased, *(m.var for m in met)], 2 * [m.layer.eps for m in met])
        torch._foreach_sqrt_(roots)
        batch_std, std = roots[: len(met)], roots[len(met) :]
        shift = torch._foreach_sub([m.rows.batch_mean for m in met], [m.mean for m in met])
        torch._foreach_div_(shift, std)
        torch._foreach_addcmul_(biases, shift, weights)
        torch._foreach_mul_(weights, list(torch._foreach_div(batch_std, std)))
        for m, inverse_std in zip(met, torch._foreach_reciprocal(batch_std), strict=True):
            m.inverse_std = inverse_std


def _tables(layers: Sequence[_BatchNorm], images: int) -> tuple[Tensor, Tensor, list[Rows]]:
    """All layers' tables one after the other, to work in and blank, and the views of the former."""
    each = [blank(layer, images) for layer in layers]
    blanks = torch.cat([table.flatten() for table in each])
    work = blanks.clone()
    parts = work.split([table.numel() for table in each])
    return work, blanks, [Rows(part.view_as(table)) for part, table in zip(parts, each, strict=True)]


class _Folded(torch.autograd.Function):
    """Normalised by the mixture; the gradient, asked for after `fold`, that of the folded layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, met: MixedLayer) -> Tensor:
        ctx.save_for_backward(x)
        ctx.met = met
        return batchnorm.batch_norm(met.layer, x, met.mean, met.var)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,), met = ctx.saved_tensors, ctx.met
        found = torch.ops.aten.native_batch_norm_backward(
            gradient, x, met.layer.weight, None, None, met.rows.batch_mean, met.inverse_std, True, met.layer.eps,
            [ctx.needs_input_grad[0], True, True],
        )  # fmt: skip
        return *(
            part if needed else None for part, needed in zip(found, ctx.needs_input_grad, strict=False)
        ), None
