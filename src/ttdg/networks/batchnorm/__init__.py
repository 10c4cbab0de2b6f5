"""BatchNorm with a chosen source of statistics: the source's, the batch's, or a mixture."""

from ttdg.networks.batchnorm.modes import (
    BATCH,
    EVAL,
    FEWEST,
    TRAIN,
    BatchMode,
    EvalMode,
    MixMode,
    Mode,
    TrainMode,
    affine,
    batch_norm,
    has_too_few_values,
    layers,
    present,
    running,
    use,
)

__all__ = [
    "BATCH", "EVAL", "FEWEST", "TRAIN", "BatchMode", "EvalMode", "MixMode", "Mode", "TrainMode", "affine", "batch_norm",
    "has_too_few_values", "layers", "present", "running", "use",
]  # fmt: skip
