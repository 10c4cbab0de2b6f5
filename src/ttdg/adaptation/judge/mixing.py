"""How far each BatchNorm layer should trust the batch: ρ of every layer, learned on simulated shifts of source images.

A small form of learning to adapt: the step (mixing in the batch's statistics) is fixed, how far to go in each layer is
fitted so that the *supervised* loss after it is low at simulated hospitals. Nothing else of the network moves.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn

from ttdg.adaptation.judge.readings import use_groups
from ttdg.data import Arrays, Benchmark, normalise
from ttdg.data.shifts import simulate
from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.grouped import LEARNED

START = 0.1


def fit_mixing(
    network: nn.Module,
    sites: Sequence[Arrays],
    benchmark: Benchmark,
    *,
    steps: int = 100,
    lr: float = 0.1,
    group: int = 4,
    groups: int = 4,
    seed: int = 0,
) -> None:
    """Fit and attach `own_rho` to every BatchNorm layer; the source images of one group come from one site."""
    device = next(network.parameters()).device
    layers = list(batchnorm.layers(network))
    logit = torch.full((len(layers), 1), math.log(START / (1 - START)), device=device, requires_grad=True)
    frozen = [p for p in network.parameters() if p.requires_grad]
    network.eval().requires_grad_(False)
    optimiser = torch.optim.Adam([logit], lr)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        images, labels = drawn_batch(sites, groups, group, generator, device)
        images, labels = simulate(images, labels, generator, group=group)
        use_groups(network, [LEARNED] * groups)
        with torch.enable_grad():
            for layer, rho in zip(layers, logit.sigmoid(), strict=True):
                layer.own_rho = rho  # type: ignore[assignment]
            logits = network(normalise(images, benchmark.normalisation))
            loss = nn.functional.cross_entropy(logits, labels) + dice_loss(logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    for layer, rho in zip(layers, logit.detach().sigmoid(), strict=True):
        layer.own_rho = rho  # type: ignore[assignment]
    for parameter in frozen:
        parameter.requires_grad_(True)


def set_mixing(network: nn.Module, values: Sequence[float] | None = None) -> list[float]:
    """Attach the layers' weights, or read them."""
    layers = list(batchnorm.layers(network))
    if values is not None:
        for layer, value in zip(layers, values, strict=True):
            layer.own_rho = layer.weight.new_tensor([value])  # type: ignore[assignment]
    return [float(layer.own_rho) for layer in layers]  # type: ignore[arg-type]


def drawn_batch(
    sites: Sequence[Arrays], groups: int, group: int, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = [], []
    for _ in range(groups):
        arrays = sites[int(torch.randint(len(sites), (1,), generator=generator))]
        rows = torch.randint(len(arrays.cases), (group,), generator=generator)
        assert arrays.masks is not None
        images.append(arrays.images[rows])
        labels.append(arrays.masks[rows])
    return torch.cat(images).to(device).float() / 255, torch.cat(labels).to(device).long()


def dice_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    P = logits.softmax(1)[:, 1:]
    Y = nn.functional.one_hot(labels, logits.shape[1]).movedim(-1, 1)[:, 1:].to(P)
    both, sizes = (P * Y).sum((2, 3)), (P + Y).sum((2, 3))
    return 1 - ((2 * both + 1) / (sizes + 1)).mean()
