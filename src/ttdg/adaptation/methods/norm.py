"""PTBN: BatchNorm normalises with the statistics of the test batch; no parameter is trained.

Nado et al., Evaluating Prediction-Time Batch Normalization for Robustness under Covariate Shift, 2020;
Schneider et al., Improving robustness against common corruptions by covariate shift adaptation, NeurIPS 2020.

TENT, SAR, CoTTA and GraTa use the same statistics. Compare them with this method to see what their training adds.
"""

from torch import nn

from ttdg.adaptation.adapter import Adapter, Fixed, Method
from ttdg.networks import batchnorm


def norm(network: nn.Module) -> Adapter:
    """Build the adapter of method `norm`."""
    return Fixed(network, batchnorm.BATCH)


METHOD = Method(
    build=norm,
    summary="BatchNorm with the statistics of the test batch (PTBN)",
    adapts="nothing",
    norm="BATCH",
    memory=False,
    forwards=1,
    backwards=0,
    predict="before",
    volumes=True,
    access="source-free",
    paper="Nado et al. 2020; Schneider et al., NeurIPS 2020",
    origin="no hyper-parameters",
    needs=("BatchNorm",),
)
