"""α-BN: source and test-batch statistics mixed, no gradient.

You et al., Test-time Batch Statistics Calibration for Covariate Shift, 2021 (and Schneider et al., NeurIPS 2020).
`alpha` is the weight of the *test batch*; variances are mixed, not standard deviations.
"""

from torch import nn

from ttdg.adaptation.adapter import Adapter, Fixed, Method
from ttdg.networks import batchnorm


def alpha_bn(network: nn.Module, *, alpha: float = 0.1) -> Adapter:
    batchnorm.use(network, batchnorm.MixMode(alpha))
    return Fixed(network)


METHOD = Method(
    build=alpha_bn,
    summary="BatchNorm with (1−α)·source + α·batch statistics",
    adapts="nothing",
    norm="MIX(alpha)",
    memory=False,
    forwards=1,
    backwards=0,
    predict="before",
    paper="You et al. 2021",
    origin="alpha 0.1: a mild fixed mixture, tuned on nothing",
    needs=("BatchNorm",),
    grid={"alpha": (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)},
)
