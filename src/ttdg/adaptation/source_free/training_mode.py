"""The mode of networks in training: BatchNorm statistics, dropout, and the options that trained methods share."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from ttdg.adaptation.options import COUNT, STEPS, Option
from ttdg.networks import batchnorm

Statistics = Literal["batch", "source"]


def use_mode(networks: Iterable[nn.Module], mode: batchnorm.Mode) -> None:
    """Set the BatchNorm mode of all networks that have such layers."""
    for network in networks:
        batchnorm.use_if_any(network, mode)


def dropout_layers(networks: Iterable[nn.Module]) -> list[nn.Module]:
    """The dropout layers of some networks that can drop anything."""
    return [m for network in networks for m in network.modules() if isinstance(m, _DropoutNd) and m.p > 0]


@contextmanager
def active_dropout(
    layers: Sequence[nn.Module], generator: torch.Generator, device: torch.device
) -> Iterator[None]:
    """Context in which dropout layers are active, with random numbers that depend on `generator` alone."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
        for layer in layers:
            layer.train()
        try:
            yield
        finally:
            for layer in layers:
                layer.eval()


ONLINE = "this project: as self-training, since the method is published for whole folders"
TRAINING = {
    "steps": STEPS.with_origin(ONLINE),
    "capacity": Option("images that the memory of the online stream keeps, as bytes", ONLINE, COUNT),
    "draw": Option("images of each gradient step", "the authors' code", COUNT),
    "epochs": Option("passes over all images of a site, in the folder stream", "the authors' code", COUNT),
    "statistics": Option(
        "BatchNorm in training: batch statistics, which the running ones follow, or those of the source",
        "the authors' code",
    ),
}
