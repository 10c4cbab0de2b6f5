"""Fitting the judge at source time: evidence and Dice on simulated shifts of held-out source images."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adapt.candidates import answer
from ttdg.adapt.mixing import fit_mixing, set_mixing
from ttdg.adapt.regressor import features, fit_regressor
from ttdg.adapt.signals import signals
from ttdg.data import Arrays, Benchmark, normalise
from ttdg.data.shifts import simulate
from ttdg.errors import UserError
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.parts import Part, digest
from ttdg.prior import MorphologyPrior
from ttdg.types import Regions


@dataclass(frozen=True)
class Table:
    """Signals and Dice of every candidate of many images."""

    signals: Mapping[str, Float[Tensor, "k n"]]
    random: Mapping[str, Float[Tensor, "k n"]]  # the universe's, had it learned nothing
    dice: Float[Tensor, "n k r"]


def fit_judge(
    network: nn.Module,
    prior: MorphologyPrior,
    train: Mapping[str, Arrays],
    held_out: Mapping[str, Arrays],
    benchmark: Benchmark,
    *,
    draws: int = 3,
    mixing_steps: int = 100,
    steps: int = 500,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Part:
    """The layers' mixing weights, learned on training images; then one regressor for each kind of evidence, fitted
    on images the network was not trained on: as they are, and at `draws` simulated hospitals, in batches of 4 and 1."""
    if not rounds(held_out, draws) or any(
        site.masks is None for site in (*train.values(), *held_out.values())
    ):
        raise UserError("the judge learns from held-out source images with masks, and here are none")
    network = copy.deepcopy(network)  # the caller's keeps its norm mode
    fit_mixing(network, list(train.values()), benchmark, steps=mixing_steps, seed=seed)
    table = evidence_table(network, prior, held_out, benchmark, draws=draws, seed=seed, progress=progress)
    return judge_part(table, network, prior, benchmark.regions, steps=steps, seed=seed)


def evidence_table(
    network: nn.Module,
    prior: MorphologyPrior,
    held_out: Mapping[str, Arrays],
    benchmark: Benchmark,
    *,
    draws: int = 3,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Table:
    """What the judge is fitted on. The network's mixing weights are set already."""
    tables = []
    for number, (arrays, group, draw) in enumerate(_plan(held_out, draws), 1):
        where = None if draw is None else seed * 1000 + draw
        tables.append(gather(network, prior, arrays, benchmark, group, where))
        progress(number)
    return joined(tables)


def judge_part(
    table: Table,
    network: nn.Module,
    prior: MorphologyPrior,
    regions: Regions,
    *,
    steps: int = 500,
    seed: int = 0,
) -> Part:
    """One regressor for each kind of evidence, with the mixing weights and what they belong to."""
    tensors, kept = {"mixing": torch.tensor(set_mixing(network))}, {}
    for kind, chosen in evidence_names(table).items():
        found = {**table.signals, **table.random} if kind == "random-universe" else table.signals
        regressor = fit_regressor(features(found, chosen), table.dice, steps=steps, seed=seed)
        tensors |= {f"{kind}.{name}": value for name, value in regressor.state_dict().items()}
        kept[kind] = list(chosen)
    scored = {name: list(labels) for name, labels in regions.items()}
    about = {"seed": seed, "images": len(table.dice), "prior": digest(prior.to_part())}
    return Part(tensors, {"signals": kept, "regions": scored, **about})


def rounds(held_out: Mapping[str, Arrays], draws: int = 3) -> int:
    """How many calls of `progress` a fit makes."""
    return len(list(_plan(held_out, draws)))


def evidence_names(table: Table) -> dict[str, list[str]]:
    every = list(table.signals)
    universe = [name for name in every if name.startswith("universe")]
    plain = [name for name in every if not name.startswith("universe")]
    return {"all": every, "universe": universe, "no-universe": plain, "random-universe": universe}


def gather(
    network: nn.Module,
    prior: MorphologyPrior,
    arrays: Arrays,
    benchmark: Benchmark,
    group: int,
    seed: int | None,
    *,
    together: int = 32,
) -> Table:
    """Evidence of a site's images in groups of `group`; with a seed, each group at a simulated hospital of its own."""
    device = next(network.parameters()).device
    parts: list[Table] = []
    for images, labels in _chunks(arrays, group, together, device):
        if seed is not None:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + len(parts))
            images, labels = simulate(images, labels, generator, group=group)
        evidence = answer(network, prior, normalise(images, benchmark.normalisation), group=group)
        found = signals(evidence, benchmark.regions, prior)
        names = [name for name in found if name.startswith("universe")]
        random = signals(evidence, benchmark.regions, prior.with_random_universe(), only=names)
        parts.append(Table(found, random, candidate_dice(evidence.logits, labels, benchmark.regions)))
    return joined(parts)


def candidate_dice(
    logits: Float[Tensor, "k b l h w"], labels: Tensor, regions: Regions
) -> Float[Tensor, "b k r"]:
    truth = region_masks(labels, regions)
    return torch.stack([dice(region_probabilities(each, regions), truth) for each in logits], 1)


def joined(parts: list[Table]) -> Table:
    def together(which: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([part[name] for part in which], 1) for name in which[0]}

    return Table(
        together([part.signals for part in parts]),
        together([part.random for part in parts]),
        torch.cat([part.dice for part in parts]),
    )


def _plan(held_out: Mapping[str, Arrays], draws: int) -> Iterator[tuple[Arrays, int, int | None]]:
    """Each site as it is, and at simulated hospitals in groups of 4 and, once, alone."""
    for arrays in held_out.values():
        if len(arrays.cases) >= 4:
            yield arrays, 4, None
            yield from ((arrays, 4, draw) for draw in range(draws))
        if arrays.cases:
            yield arrays, 1, draws


def _chunks(
    arrays: Arrays, group: int, together: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Whole groups only: a rest has other statistics than a batch has."""
    assert arrays.masks is not None
    usable, chunk = len(arrays.cases) // group * group, together // group * group
    for at in range(0, usable, chunk):
        rows = slice(at, min(at + chunk, usable))
        yield arrays.images[rows].to(device).float() / 255, arrays.masks[rows].to(device).long()
