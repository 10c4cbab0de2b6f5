"""BatchNorm with explicit statistics: source, batch, or a mixture of both.

A mode is a callable `(layer, x) -> y` that replaces the forward pass of a BatchNorm layer. `use(network, mode)` sets
the mode of every BatchNorm layer.

Modes:

* `EvalMode`, `EVAL`: normalise with the running (source) statistics.
* `FixedMode`, `FIXED`: the same with a faster backward pass, for networks that learn.
* `BatchMode`, `BATCH`: normalise with the batch statistics.
* `TrainMode`, `TRAIN`: normalise with the batch statistics and update the running statistics.
* `MixMode`: normalise with (1−ρ)·source + ρ·batch statistics.
* `Mode`: the type of a mode.

Functions:

* `use`: sets the mode of every BatchNorm layer of a network; `use_if_any`: the same, for networks that may have none.
* `replace_batch`: sets another mode wherever `use` asks for `BATCH` later.
* `layers`, `has_layers`: the BatchNorm layers of a network; whether there are any.
* `affine_parameters`: γ and β of all layers.
* `running_statistics`: running mean and variance of a layer.
* `batch_norm`: normalises with given statistics.
* `has_too_few_values`, `MIN_VALUES`: whether an input has too few values to estimate batch statistics.

Submodules: `batched` (statistics of all layers in few calls), `custom_grad` (fused gradients), `grouped` and
`grouped_triton` (several groups in one batch), `adamix` (AdaMixBN), `alignment` (the loss of PASS).
"""

from ttdg.networks.batchnorm.fixed import FIXED, FixedMode
from ttdg.networks.batchnorm.modes import (
    BATCH,
    EVAL,
    MIN_VALUES,
    TRAIN,
    BatchMode,
    EvalMode,
    MixMode,
    Mode,
    TrainMode,
    affine_parameters,
    batch_norm,
    has_layers,
    has_too_few_values,
    layers,
    replace_batch,
    running_statistics,
    use,
    use_if_any,
)

__all__ = [
    "BATCH", "EVAL", "FIXED", "MIN_VALUES", "TRAIN", "BatchMode", "EvalMode", "FixedMode", "MixMode", "Mode",
    "TrainMode", "affine_parameters", "batch_norm", "has_layers", "has_too_few_values", "layers", "replace_batch",
    "running_statistics", "use", "use_if_any",
]  # fmt: skip
