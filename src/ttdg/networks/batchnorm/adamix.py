"""AdaMixBN: mix source and batch statistics with a weight α from the data, then fold the mixture into γ and β.

The α of a layer depends on the output of all earlier layers, so it cannot be computed for all layers at once. To keep
kernel launches few, the statistics of the images, the batch and the source are rows of one table for each layer. The
kernel that updates BatchNorm's running statistics fills the table in place in two calls. α and the mixture take seven
more calls. These nine calls for each layer are the cost of the method besides its passes. Folding is not needed between
layers, so it is done for all layers together after the pass.
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

TINY = 1e-18  # minimum difference of images from batch and source: avoids 0/0 if all are equal, where α is then 1


class StatisticsTable:
    """Views of the table of one layer.

    The four planes hold variances, means, standard deviations and a constant. The rows of each plane are the images,
    then the batch, then the source; the columns are channels. The constant plane is `TINY` for images and 0 otherwise.

    Args:
        table: the table to view, as `source_table` creates it.
    """

    def __init__(self, table: Float[Tensor, "4 rows c"]) -> None:
        images, self.table = table.shape[1] - 2, table
        self.variances, self.deviations, self.image_means = table[0], table[2], table[1, :images]
        self.image_buffers = table[1, :images].view(-1), table[0, :images].view(-1)  # means, variances
        self.batch_mean, self.batch_var = self.batch_buffers = table[1, images], table[0, images]
        self.source_and_batch = table[:2, -1], table[:2, -2]  # variance and mean of each
        shape = (3, images + 2, 2, -1)
        self.pairs = table[1:, :, None].expand(*shape), table[1:, None, -2:].expand(*shape)


def source_table(layer: _BatchNorm, images: int) -> Float[Tensor, "4 rows c"]:
    """A table that contains the source statistics; those of images and batch are still zero."""
    mean, var = batchnorm.running_statistics(layer)
    table = mean.new_zeros(4, images + 2, len(mean))
    table[0, -1], table[1, -1] = var, mean
    table[3, :images] = TINY
    return table


def mixed_statistics(x: Tensor, table: StatisticsTable) -> Float[Tensor, "2 c"]:
    """The mixed variance (unbiased) and mean; fills the table.

    With momentum 1, updating running statistics replaces them by those of the input. If images are reshaped to
    channels, one update gives the statistics of every image.
    """
    torch.batch_norm_update_stats(x, *table.batch_buffers, 1.0)
    if x[0, 0].numel() > 1:
        torch.batch_norm_update_stats(x.reshape(1, -1, *x.shape[2:]), *table.image_buffers, 1.0)
    else:
        table.image_means.copy_(x.flatten(1))
    torch.sqrt(table.variances, out=table.deviations)
    return torch.lerp(*table.source_and_batch, batch_weight(*table.pairs))


def batch_weight(
    points: Float[Tensor, "s rows 2 c"], batch_and_source: Float[Tensor, "s rows 2 c"]
) -> Float[Tensor, ""]:
    """1 − α, the mean over images of d_bs / (d_bs + d_is + d_ib).

    d is the squared distance of means and deviations between image (i), batch (b) and source (s).
    """
    summed = F.mse_loss(points, batch_and_source, reduction="none").sum((0, 2, 3))  # to batch plus to source
    d_bs = summed[-2]  # the batch's row: its distance to itself is 0
    return (d_bs / (summed[:-2] + d_bs)).mean()


class AdaMixMode:
    """Normalises with α·source + (1−α)·batch statistics, with α from the data; writes no buffer.

    γ and β are cloned, so that the gradient is that of their values in this pass even if they are folded before it.
    """

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise `x` with the mixed statistics."""
        mean, var = batchnorm.running_statistics(layer)
        if not batchnorm.has_too_few_values(x):
            with torch.no_grad():
                var, mean = mixed_statistics(x, StatisticsTable(source_table(layer, len(x))))
        weight, bias = (None if p is None else p.clone() for p in (layer.weight, layer.bias))
        return F.batch_norm(x, mean, var, weight, bias, eps=layer.eps)


ADAMIX = AdaMixMode()


@dataclass
class MixedLayer:
    """A layer with its statistics in one pass."""

    layer: _BatchNorm
    count: int  # values per channel
    table: StatisticsTable
    var: Tensor  # mixed
    mean: Tensor  # mixed
    inverse_std: Tensor | None = None  # of the batch; set by `FoldingMode.fold`, needed by the gradient


class FoldingMode:
    """AdaMixBN whose mixture is folded into γ and β after a pass.

    1. `start` begins a pass, which normalises with the mixed statistics.
    2. `fold` changes γ and β so that normalising with the batch statistics gives the same output.
    3. The gradient of the pass is that of the folded layers. From then on the layers use the batch statistics.

    Without `start` the mode is the same as `ADAMIX`. Layers without γ and β are mixed but not folded; so is the second
    input of a layer that runs twice in a pass.
    """

    def __init__(self, network: nn.Module) -> None:
        self.layers = [layer for layer in batchnorm.layers(network) if layer.affine]
        # Kept for all batch sizes, because captured CUDA graphs keep using these tensors.
        self._tables: dict[Any, tuple[Tensor, Tensor, list[StatisticsTable]]] = {}
        self.reset()

    def reset(self) -> None:
        """Return to the state before the first `start`."""
        self.folded = False
        self._mixed: dict[_BatchNorm, MixedLayer] = {}
        self._available: dict[_BatchNorm, StatisticsTable] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes its tables again: pickled views share no memory with their tensor."""
        return {**vars(self), "_tables": {}}

    def start(self, images: int) -> None:
        """Begin a pass of `images` images. γ and β must be those of the source."""
        mean, _ = batchnorm.running_statistics(self.layers[0])
        if (key := (images, mean.device, mean.dtype)) not in self._tables:
            self._tables[key] = _all_tables(self.layers, images)
        values, initial, tables = self._tables[key]
        values.copy_(initial)
        self.reset()
        self._available.update(zip(self.layers, tables, strict=True))

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise `x` with mixed statistics before `fold`, with batch statistics after it."""
        if self.folded and layer.affine:
            return batchnorm.BATCH(layer, x)
        table = self._available.pop(layer, None)
        if table is None or batchnorm.has_too_few_values(x):
            return ADAMIX(layer, x)
        with torch.no_grad():
            var, mean = mixed_statistics(x, table)
        mixed = self._mixed[layer] = MixedLayer(layer, x.numel() // x.shape[1], table, var, mean)
        return _FoldedGradient.apply(x, layer.weight, layer.bias, mixed)  # type: ignore[no-untyped-call,no-any-return]

    @torch.no_grad()
    def fold(self) -> None:
        """Change γ and β so that (x−μ̄)/√(v̄+ε)·γ + β = (x−μ)/√(v+ε)·γ' + β'.

        μ̄ and v̄ are the mixed statistics; μ and v are the mean and the biased variance of the batch.
        """
        mixed = list(self._mixed.values())
        self.reset()
        self.folded = True
        if not mixed:  # all maps were too small for statistics
            return
        weights: list[Tensor] = [m.layer.weight for m in mixed]
        biases: list[Tensor] = [m.layer.bias for m in mixed]
        biased = torch._foreach_mul(
            [m.table.batch_var for m in mixed], [(m.count - 1) / m.count for m in mixed]
        )
        roots = torch._foreach_add([*biased, *(m.var for m in mixed)], 2 * [m.layer.eps for m in mixed])
        torch._foreach_sqrt_(roots)
        batch_std, std = roots[: len(mixed)], roots[len(mixed) :]
        shift = torch._foreach_sub([m.table.batch_mean for m in mixed], [m.mean for m in mixed])
        torch._foreach_div_(shift, std)
        torch._foreach_addcmul_(biases, shift, weights)
        torch._foreach_mul_(weights, list(torch._foreach_div(batch_std, std)))
        for m, inverse_std in zip(mixed, torch._foreach_reciprocal(batch_std), strict=True):
            m.inverse_std = inverse_std


def _all_tables(layers: Sequence[_BatchNorm], images: int) -> tuple[Tensor, Tensor, list[StatisticsTable]]:
    """The tables of all layers in one tensor, the initial values of this tensor, and the views of each table."""
    tables = [source_table(layer, images) for layer in layers]
    initial = torch.cat([table.flatten() for table in tables])
    values = initial.clone()
    parts = values.split([table.numel() for table in tables])
    views = [StatisticsTable(part.view_as(table)) for part, table in zip(parts, tables, strict=True)]
    return values, initial, views


class _FoldedGradient(torch.autograd.Function):
    """Normalises with the mixture; the gradient, computed after `fold`, is that of the folded layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mixed: MixedLayer) -> Tensor:
        ctx.save_for_backward(x)
        ctx.mixed = mixed
        return batchnorm.batch_norm(mixed.layer, x, mixed.mean, mixed.var)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,), mixed = ctx.saved_tensors, ctx.mixed
        gradients = torch.ops.aten.native_batch_norm_backward(
            gradient, x, mixed.layer.weight, None, None, mixed.table.batch_mean, mixed.inverse_std, True,
            mixed.layer.eps, [ctx.needs_input_grad[0], True, True],
        )  # fmt: skip
        needed = zip(gradients, ctx.needs_input_grad, strict=False)
        return *(value if wanted else None for value, wanted in needed), None
