"""No adaptation: the source model, with the BatchNorm statistics of its training. Every table starts with it."""

from torch import nn

from ttdg.adaptation.adapter import Adapter, Fixed, Method


def source(network: nn.Module) -> Adapter:
    """Build the adapter of method `source`."""
    return Fixed(network)


METHOD = Method(
    build=source,
    summary="no adaptation: the source model, BatchNorm with its running statistics",
    adapts="nothing",
    norm="EVAL",
    memory=False,
    forwards=1,
    backwards=0,
    predict="before",
    volumes=True,
    access="source-free",
    paper="-",
    origin="-",
)
