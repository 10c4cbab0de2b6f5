"""Fitting the judge at source time: evidence and Dice on simulated shifts of held-out source images."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ttdg.adaptation.judge.candidates import candidates_of, read_batch, weigh
from ttdg.adaptation.judge.locations import PointLocations, point_locations
from ttdg.adaptation.judge.method import KINDS, UNIVERSES, EvidenceKind
from ttdg.adaptation.judge.mixing import fit_mixing, set_mixing
from ttdg.adaptation.judge.readings import SETS
from ttdg.adaptation.judge.regressor import features, fit_regressor
from ttdg.adaptation.judge.signals import signals
from ttdg.checkpoints import part_digest
from ttdg.data import Arrays, Benchmark, normalise
from ttdg.data.shifts import simulate
from ttdg.errors import UserError, suggestion
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.networks import batchnorm
from ttdg.prior import MorphologyPrior
from ttdg.types import Part, Regions

FEW = 120  # images, each at a hospital of its own batch, that a small site gives at least
PLACED = 16  # batches of 8 of each site from which the places of the universe's points are read


@dataclass(frozen=True)
class EvidenceTable:
    """Signals and Dice of every candidate of many images."""

    signals: Mapping[str, Float[Tensor, "k n"]]
    dice: Float[Tensor, "n k r"]
    hospital: Int[Tensor, " n"]  # which images came together
    plain: int  # candidates, the first, in which the universe has no part


Tables = Mapping[str, EvidenceTable]  # by universe: "learned", and the controls' (judge.UNIVERSES)


@dataclass(frozen=True)
class EvidenceSource:
    """All that evidence is gathered with: a network with its mixing weights, and the universes."""

    network: nn.Module
    priors: Mapping[str, MorphologyPrior]
    places: Mapping[str, PointLocations]
    benchmark: Benchmark
    readings: str = "four"  # which of SETS


def evidence_source(
    network: nn.Module,
    prior: MorphologyPrior,
    train: Mapping[str, Arrays],
    benchmark: Benchmark,
    readings: str = "four",
    controls: bool = True,
) -> EvidenceSource:
    """The network's mixing weights are set already; the places are those in its training images."""
    batchnorm.use(network, batchnorm.EVAL)
    priors = {name: made(prior) for name, made in UNIVERSES.items() if controls or name == "learned"}
    device = next(network.parameters()).device

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for site in train.values():
            for images, labels in islice(_chunks(site, 1, 8, device), PLACED):
                yield normalise(images, benchmark.normalisation), labels

    return EvidenceSource(network, priors, point_locations(network, priors, batches()), benchmark, readings)


def fit_judge(
    network: nn.Module,
    prior: MorphologyPrior,
    train: Mapping[str, Arrays],
    held_out: Mapping[str, Arrays],
    benchmark: Benchmark,
    *,
    draws: int | None = None,
    mixing_steps: int = 100,
    readings: str = "four",
    controls: bool = True,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Part:
    """The layers' mixing weights, learned on training images; then one regressor for each kind of evidence, fitted
    on images the network was not trained on: as they are, and at `draws` simulated hospitals (3, and more of a small
    site, unless given), in batches of 4 and 1. `readings` is one of SETS. Without `controls`
    there is no judge of a random or an untyped universe, and the fit takes half as long on a CPU."""
    if readings not in SETS:
        raise UserError(f"unknown readings {readings!r}{suggestion(readings, SETS)}")
    if not rounds(held_out, draws) or any(
        site.masks is None for site in (*train.values(), *held_out.values())
    ):
        raise UserError("the judge learns from held-out source images with masks, and here are none")
    network = copy.deepcopy(network)  # the caller's keeps its norm mode
    fit_mixing(network, list(train.values()), benchmark, steps=mixing_steps, seed=seed)
    seen = evidence_source(network, prior, train, benchmark, readings, controls)
    tables = evidence_tables(seen, held_out, draws=draws, seed=seed, progress=progress)
    return judge_part(tables, seen, seed=seed)


def evidence_tables(
    seen: EvidenceSource,
    held_out: Mapping[str, Arrays],
    *,
    draws: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Tables:
    """What the judge is fitted on."""
    parts = []
    for number, (arrays, group, draw) in enumerate(_plan(held_out, draws), 1):
        parts.append(gather(seen, arrays, group, None if draw is None else seed * 1000 + draw))
        progress(number)
    return concatenated(parts)


def judge_part(tables: Tables, seen: EvidenceSource, *, seed: int = 0) -> Part:
    """One regressor for each kind of evidence, with the mixing weights, the places, and what they belong to."""
    tensors, kept = {"mixing": torch.tensor(set_mixing(seen.network))}, {}
    for universe, places in seen.places.items():
        tensors[f"places.{universe}"] = torch.stack([places.radius, places.spread, places.use])
    for kind in (kind for kind, use in KINDS.items() if use.universe in tables):
        x, scores, names = inputs(tables, kind)
        regressor = fit_regressor(x, scores, tables["learned"].hospital, seed=seed)
        tensors |= {f"{kind}.{name}": value for name, value in regressor.tensors().items()}
        kept[kind] = names
    regions = {name: list(labels) for name, labels in seen.benchmark.regions.items()}
    about = {
        "seed": seed,
        "images": len(tables["learned"].dice),
        "prior": part_digest(seen.priors["learned"].to_part()),
    }
    return Part(tensors, {"signals": kept, "regions": regions, "readings": seen.readings, **about})


def inputs(
    tables: Tables, kind: EvidenceKind
) -> tuple[Float[Tensor, "n k f"], Float[Tensor, "n k r"], list[str]]:
    """What a regressor of this kind sees, what it should say, and the names of its signals."""
    use = KINDS[kind]
    table = tables[use.universe]
    count = table.dice.shape[1] if use.fused else table.plain
    names = [name for name in tables["learned"].signals if use.sees(name)]
    found = {name: table.signals[name][:count] for name in names}
    return features(found, names), table.dice[:, :count], names


def rounds(held_out: Mapping[str, Arrays], draws: int | None = None) -> int:
    """How many calls of `progress` a fit makes."""
    return len(list(_plan(held_out, draws)))


def gather(
    seen: EvidenceSource, arrays: Arrays, group: int, seed: int | None, *, together: int = 16
) -> Tables:
    """Evidence of a site's images in groups of `group`; with a seed, each group at a simulated hospital of its own."""
    device, benchmark = next(seen.network.parameters()).device, seen.benchmark
    parts: list[Tables] = []
    for images, labels in _chunks(arrays, group, together, device):
        if seed is not None:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + len(parts))
            images, labels = simulate(images, labels, generator, group=group)
        images = normalise(images, benchmark.normalisation)
        readings = SETS[seen.readings]
        views = read_batch(seen.network, seen.priors["learned"], images, readings=readings, group=group)
        tables: dict[str, EvidenceTable] = {}
        for universe, prior in seen.priors.items():
            evidence = weigh(views, prior, candidates_of(readings))
            only = None if universe == "learned" else ["universe"]
            found = signals(evidence, benchmark.regions, prior, seen.places[universe], only=only)
            scores = candidate_dice(evidence.logits, labels, benchmark.regions)
            company = torch.arange(len(images), device=device) // (group if seed is not None else len(images))
            tables[universe] = EvidenceTable(found, scores, company, evidence.plain)
        parts.append(tables)
    return concatenated(parts)


def candidate_dice(
    logits: Float[Tensor, "k b l h w"], labels: Tensor, regions: Regions
) -> Float[Tensor, "b k r"]:
    truth = region_masks(labels, regions)
    return torch.stack([dice(region_probabilities(each, regions), truth) for each in logits], 1)


def concatenated(parts: list[Tables]) -> Tables:
    def together(tables: list[EvidenceTable]) -> EvidenceTable:
        found = {name: torch.cat([t.signals[name] for t in tables], 1) for name in tables[0].signals}
        hospitals, known = [], 0
        for table in tables:
            hospitals.append(table.hospital + known)
            known += int(table.hospital[-1]) + 1
        scores = torch.cat([table.dice for table in tables])
        return EvidenceTable(found, scores, torch.cat(hospitals), tables[0].plain)

    return {universe: together([part[universe] for part in parts]) for universe in parts[0]}


def _plan(held_out: Mapping[str, Arrays], draws: int | None) -> Iterator[tuple[Arrays, int, int | None]]:
    """Each site as it is, and at `draws` simulated hospitals in groups of 4 and, half as often, alone."""
    for arrays in held_out.values():
        times = draws or max(3, -(-FEW // max(1, len(arrays.cases))))
        if len(arrays.cases) >= 4:
            yield arrays, 4, None
            yield from ((arrays, 4, draw) for draw in range(times))
        if arrays.cases:
            yield from ((arrays, 1, times + draw) for draw in range(-(-times // 2)))


def _chunks(
    arrays: Arrays, group: int, together: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Whole groups only: a rest has other statistics than a batch has."""
    assert arrays.masks is not None
    usable, chunk = len(arrays.cases) // group * group, together // group * group
    for at in range(0, usable, chunk):
        rows = slice(at, min(at + chunk, usable))
        yield arrays.images[rows].to(device).float() / 255, arrays.masks[rows].to(device).long()
