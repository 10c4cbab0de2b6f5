"""α-BN: BatchNorm normalises with a fixed mixture of source and test-batch statistics; no parameter is trained.

You et al., Test-time Batch Statistics Calibration for Covariate Shift, 2021 (and Schneider et al., NeurIPS 2020).

Decisions: `alpha` is the weight of the test batch. Variances are mixed, not standard deviations.
"""

from torch import nn

from ttdg.adaptation.adapter import Adapter, Fixed, Method
from ttdg.adaptation.options import SHARE, Option
from ttdg.networks import batchnorm


def alpha_bn(network: nn.Module, *, alpha: float = 0.1) -> Adapter:
    """Build the adapter of method `alpha-bn`."""
    return Fixed(network, batchnorm.MixMode(alpha))


METHOD = Method(
    build=alpha_bn,
    summary="BatchNorm with (1−α)·source + α·batch statistics",
    adapts="nothing",
    norm="MIX(alpha)",
    memory=False,
    forwards=1,
    backwards=0,
    predict="before",
    volumes=True,
    access="source-free",
    paper="You et al. 2021",
    origin="alpha 0.1: a mild fixed mixture, not tuned on any data",
    published=None,
    options={
        "alpha": Option(
            "weight of the test batch in the mixed statistics; 0 is `source`, 1 is close to `norm`",
            "this project: a mild mixture, not tuned on any data",
            SHARE,
        ),
    },
    needs=("BatchNorm",),
    grid={"alpha": (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)},
)
