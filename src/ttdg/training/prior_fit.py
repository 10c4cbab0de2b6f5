"""Fits a morphology prior to a trained network without changing the network."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ttdg.data import Arrays, Benchmark
from ttdg.networks import feature_maps, level_channels
from ttdg.prior import MorphologyPrior, prior_for, prior_loss
from ttdg.training.batches import Pool
from ttdg.training.recipe import FITTING_AUGMENTATION, Recipe

STEPS, BATCH, RATE = 600, 8, 1e-3


def fit_prior(
    network: Any,
    sources: Mapping[str, Arrays],
    benchmark: Benchmark,
    *,
    steps: int = STEPS,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
    **settings: Any,
) -> MorphologyPrior:
    """Fit φ and 𝒰 to source images by minimising L(𝒰) with AdamW; the learning rate decays to 0.

    `settings` are fields of `PriorSpec`. In a network that is no `Segmenter`, the levels are names of modules. Equal
    images, seed and settings give equal priors.
    """
    frozen: Any = copy.deepcopy(network).eval().requires_grad_(False)
    device = next(frozen.parameters()).device
    pool = Pool(list(sources.values()), device)
    recipe = Recipe(batch=BATCH, steps=steps, lr=RATE, augmentation=FITTING_AUGMENTATION, seed=seed)
    one = pool.batch(recipe, benchmark.normalisation, 1, slice(0, 1))[0]
    widths = level_channels(frozen, one, settings.get("levels", ()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        prior = prior_for(widths, len(benchmark.labels), **settings).to(device).train()
    for unused in (prior.edges, prior.affinity):  # L(𝒰) has no gradient with respect to them
        unused.requires_grad_(False)
    trained = [parameter for parameter in prior.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, RATE, weight_decay=0.0, fused=device.type == "cuda")
    for step in range(1, steps + 1):
        images, labels = pool.batch(recipe, benchmark.normalisation, step, slice(0, BATCH))
        with torch.no_grad():
            maps = feature_maps(frozen, images, prior.spec.levels)[1]
        optimiser.param_groups[0]["lr"] = recipe.rate(step - 1)
        prior_loss(prior, maps, labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        progress(step)
    return prior.requires_grad_(False).eval()
