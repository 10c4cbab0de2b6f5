"""Fitting the fingerprint on source images: the statistics, and the limits of the verdicts."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from ttdg.data import Arrays, Benchmark, normalise
from ttdg.data.shifts import simulate
from ttdg.safety.descriptions import SourceShadow
from ttdg.safety.fingerprint import Embedding, Fingerprint, make_group
from ttdg.types import Part

BATCH = 16  # images of a batch, for which the limits are calibrated
DESCRIBED = 128  # training images of each site
REFERENCES = 64  # held-out images of each site
FAR = 0.9  # share of the simulated hospitals that are not far
BEYOND = 1.1  # images of another kind are this many times as far as the farthest simulated hospital
CHUNK = 16  # images of a forward pass

Prepare = Callable[[Tensor], Tensor]


def fit_fingerprint(
    network: nn.Module,
    train: Mapping[str, Arrays],
    held_out: Mapping[str, Arrays],
    benchmark: Benchmark,
    *,
    hospitals: int = 48,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Part:
    """Fit the part "fingerprint".

    Args:
        network: The source network, which is not changed.
        train: Training images by site, for the statistics.
        held_out: Images by site that the network was not trained on, for the test and the limits. A site without any
            is represented by its training images.
        benchmark: Normalisation of the images.
        hospitals: Simulated hospitals, of 16 images each, from which the limits are calibrated.
        seed: Seed of all random draws.
        progress: Called after each of `count_steps` steps, with the number of steps done.
    """
    generator, shadow, steps = Generator().manual_seed(seed), SourceShadow(network), 0
    device = next(network.parameters()).device

    def describe(images: Float[Tensor, "n 3 h w"]) -> dict[str, Tensor]:
        """Describe images in [0, 1]."""
        nonlocal steps
        parts = [
            shadow(normalise(part, benchmark.normalisation).to(device))[1] for part in images.split(CHUNK)
        ]
        steps += 1
        progress(steps)
        return {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}

    used = {name: _spread(site, DESCRIBED) for name, site in train.items() if site.cases}
    described = [describe(images) for images in used.values()]
    site = torch.cat([torch.full((len(images),), i) for i, images in enumerate(used.values())])
    groups = {
        name: make_group(torch.cat([one[name] for one in described]), site, generator)
        for name in described[0]
    }

    def embed(description: Mapping[str, Tensor]) -> Embedding:
        return torch.stack([group.embed(description[name]) for name, group in groups.items()], 1)

    rest = {name: _spread(held_out[name], REFERENCES) for name in used if _count(held_out.get(name))}
    rest = {name: rest.get(name, used[name]) for name in used}
    references = [embed(describe(images)) for images in rest.values()]
    owner = torch.cat([torch.full((len(one),), i) for i, one in enumerate(references)])
    centres = torch.stack([embed(one).mean(0) for one in described])
    fingerprint = Fingerprint(
        groups,
        shadow.layers,
        list(used),
        centres,
        torch.cat(references),
        owner,
        torch.ones(len(groups)),
        1.0,
        1.0,
        1.0,
    )
    pools = list(rest.values())
    shifted = list[Embedding]()
    for number in range(hospitals):
        images = _draw(pools[number % len(pools)], generator)
        labels = torch.zeros(len(images), *images.shape[2:], dtype=torch.long)
        moved, _ = simulate(images, labels, generator, group=len(images), anatomy=False)
        shifted.append(fingerprint.embed(describe(moved)))
    return calibrate(fingerprint, shifted).to_part()


def count_steps(sites: int, hospitals: int) -> int:
    """Number of steps of `fit_fingerprint` for this number of sites."""
    return 2 * sites + hospitals


def calibrate(fingerprint: Fingerprint, shifted: list[Embedding]) -> Fingerprint:
    """Return the fingerprint with its scale and limits, from batches of simulated hospitals.

    Images that are farther than every simulated hospital, by a tenth, are not of the source's kind.
    """
    means = torch.stack([one.mean(0) for one in shifted])
    squared = fingerprint.squared(means, BATCH).clamp(min=0)
    nearest = squared.mean(-1).argmin(-1)
    scale = squared[torch.arange(len(squared)), nearest].mean(0).clamp(min=1e-3)
    fingerprint = replace(fingerprint, scale=scale)
    batches = fingerprint.overall(means, BATCH)
    images = fingerprint.overall(torch.cat(shifted), 1)
    return replace(
        fingerprint,
        far=float(batches.quantile(FAR)),
        foreign=BEYOND * float(batches.max()),
        foreign_image=BEYOND * float(images.max()),
    )


def _count(arrays: Arrays | None) -> int:
    return 0 if arrays is None else len(arrays.cases)


def _spread(arrays: Arrays, most: int) -> Float[Tensor, "n 3 s s"]:
    """Return at most `most` images in [0, 1], spread over the site."""
    rows = torch.linspace(0, len(arrays.cases) - 1, min(most, len(arrays.cases))).round().long()
    return arrays.images[rows].float() / 255


def _draw(images: Float[Tensor, "n 3 s s"], generator: Generator) -> Float[Tensor, "k 3 s s"]:
    rows: Int[Tensor, " k"] = torch.randint(len(images), (BATCH,), generator=generator)
    return images[rows]
