"""Learned mixing weights: how much of the batch statistics each BatchNorm layer uses.

One weight ρ for each layer is fitted on source images under simulated shifts, such that the supervised loss of the
network with mixed statistics is low. The network's own weights stay fixed.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn

from ttdg.adaptation.judge.readings import use_groups
from ttdg.data import Arrays, Benchmark, normalise
from ttdg.data.shifts import simulate
from ttdg.errors import UserError
from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.grouped import LEARNED, LayerWeights
from ttdg.networks.losses import soft_dice_loss

INITIAL_RHO = 0.1


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
) -> LayerWeights:
    """Fit the mixing weight of every BatchNorm layer; leaves the layers in EVAL mode. Without layers there are none.

    Args:
        network: the source network.
        sites: source images with masks.
        benchmark: defines the normalisation of images.
        steps: number of Adam steps.
        lr: learning rate of Adam.
        group: images of a group. They come from one site and get one simulated shift.
        groups: groups of a step.
        seed: seed of the drawn images and shifts.
    """
    if not batchnorm.has_layers(network):
        return {}
    device = next(network.parameters()).device
    layers = list(batchnorm.layers(network))
    logit = torch.full(
        (len(layers), 1), math.log(INITIAL_RHO / (1 - INITIAL_RHO)), device=device, requires_grad=True
    )
    trainable = [p for p in network.parameters() if p.requires_grad]
    network.eval().requires_grad_(False)
    optimiser = torch.optim.Adam([logit], lr)
    generator = torch.Generator().manual_seed(seed)
    structures = benchmark.task == "segmentation"
    for _ in range(steps):
        images, labels = sample_groups(sites, groups, group, generator, device)
        images, labels = simulate(images, labels, generator, group=group, anatomy=structures)
        images = normalise(images, benchmark.normalisation)
        at_once = 1 if images.is_cpu else groups  # a CPU is faster with small maps
        for x, y in zip(images.split(at_once * group), labels.split(at_once * group), strict=True):
            with torch.enable_grad():
                use_groups(network, [LEARNED] * at_once, dict(zip(layers, logit.sigmoid(), strict=True)))
                loss = _loss(network, x, y, structures) * (at_once / groups)
            loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    batchnorm.use(network, batchnorm.EVAL)
    for parameter in trainable:
        parameter.requires_grad_(True)
    return layer_weights(network, logit.detach().sigmoid()[:, 0].tolist())


def _loss(network: nn.Module, images: torch.Tensor, labels: torch.Tensor, structures: bool) -> torch.Tensor:
    """Cross-entropy and, if there are structures, soft Dice loss; each is a mean over images."""
    layout = (
        torch.channels_last if images.is_cpu else torch.contiguous_format
    )  # the faster one of each device
    logits = network(images.contiguous(memory_format=layout))
    loss = nn.functional.cross_entropy(logits, labels)
    return loss + soft_dice_loss(logits, labels) if structures else loss


def layer_weights(network: nn.Module, values: Sequence[float]) -> LayerWeights:
    """Mixing weights of the layers as device tensors; `values` are in the order of `batchnorm.layers`."""
    layers = list(batchnorm.layers(network)) if batchnorm.has_layers(network) else []
    if len(layers) != len(values):
        raise UserError(
            f"the judge was fitted to a network with {len(values)} BatchNorm layers, and this one has {len(layers)}; "
            "fit the part 'judge' to this network"
        )
    like = next(network.parameters())
    return {layer: like.new_tensor([value]) for layer, value in zip(layers, values, strict=True)}


def sample_groups(
    sites: Sequence[Arrays], groups: int, group: int, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw `groups` groups of `group` images in [0, 1] with their label maps, each group from one random site."""
    images, labels = [], []
    for _ in range(groups):
        arrays = sites[int(torch.randint(len(sites), (1,), generator=generator))]
        rows = torch.randint(len(arrays.cases), (group,), generator=generator)
        assert arrays.masks is not None
        images.append(arrays.images[rows])
        labels.append(arrays.masks[rows])
    return torch.cat(images).to(device).float() / 255, torch.cat(labels).to(device).long()
