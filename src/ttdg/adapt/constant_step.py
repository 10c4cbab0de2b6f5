"""Controls of the learned step: what a step gains that does not look at the batch.

Rates are fitted at simulated hospitals, so a step that is the same everywhere has learned from them too: it is a
little more source training. Only what the batch's own gradient gains beyond that is adaptation.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adapt import batchnorm
from ttdg.adapt.affine import Affine, Rates
from ttdg.adapt.rates import MIX, LearnedStep, hospitals, prepared, supervised
from ttdg.data import Arrays, Benchmark
from ttdg.prior import MorphologyPrior, maps_of


def mean_steps(
    network: nn.Module,
    prior: MorphologyPrior,
    sites: Sequence[Arrays],
    benchmark: Benchmark,
    rates: Mapping[str, Rates],
    *,
    episodes: int = 16,
    group: int = 4,
    norm: batchnorm.Mode = MIX,
    seed: int = 0,
) -> dict[str, Float[Tensor, " n"]]:
    """Every variant's step, averaged over simulated hospitals: the part of it that is the same for every batch."""
    adapters = {name: LearnedStep(network, prior, value, name, norm=norm) for name, value in rates.items()}
    device = next(network.parameters()).device
    totals: dict[str, Tensor] = {}
    for images, _ in hospitals(sites, benchmark, episodes, group, seed, device):
        for name, adapter in adapters.items():
            step = adapter.step(images) / episodes
            totals[name] = totals[name] + step if name in totals else step
    return totals


def tuned_step(
    network: nn.Module,
    sites: Sequence[Arrays],
    benchmark: Benchmark,
    *,
    steps: int = 60,
    group: int = 4,
    lr: float = 1e-3,
    norm: batchnorm.Mode = MIX,
    seed: int = 0,
) -> Float[Tensor, " n"]:
    """The best constant step, found as the rates are: γ, β trained on the same hospitals with the supervised loss."""
    network = prepared(network, norm)
    theta = Affine(network)
    start = torch.cat([p.detach().clone() for p in theta.tensors])
    optimiser = torch.optim.Adam(theta.tensors, lr)
    for images, labels in hospitals(sites, benchmark, steps, group, seed, start.device):
        with torch.enable_grad():
            loss = supervised(maps_of(network, images)[0], labels)
        for tensor, part in zip(theta.tensors, theta.gradient(loss).split(theta.sizes), strict=True):
            tensor.grad = part
        optimiser.step()
    return start - torch.cat([p.detach() for p in theta.tensors])


def stepped(network: nn.Module, step: Float[Tensor, " n"], norm: batchnorm.Mode = MIX) -> nn.Module:
    """A copy of the network at θ − step, for every batch alike."""
    network = prepared(network, norm)
    theta = Affine(network)
    theta.set(torch.cat([p.detach() for p in theta.tensors]) - step)
    return network.requires_grad_(False)
