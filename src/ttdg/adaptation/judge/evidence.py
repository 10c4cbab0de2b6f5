"""Evidence: signals and true Dice of every candidate on labelled images, from which the regressors are fitted."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ttdg.adaptation.judge.candidates import candidates_of, predict_candidates, predict_readings
from ttdg.adaptation.judge.method import UNIVERSES
from ttdg.adaptation.judge.readings import READING_SETS
from ttdg.adaptation.judge.signals import prediction_signals
from ttdg.data import Arrays, Benchmark, normalise
from ttdg.data.shifts import simulate
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.grouped import LayerWeights
from ttdg.prior import MorphologyPrior
from ttdg.prior.locations import PointLocations, point_locations
from ttdg.prior.universe_signals import universe_signals
from ttdg.types import Regions

LOCATION_BATCHES = 16  # batches of 8 training images of each site from which point locations are measured


@dataclass(frozen=True)
class EvidenceTable:
    """Signals and Dice of `k` candidates for `n` images."""

    signals: Mapping[str, Float[Tensor, "k n"]]
    dice: Float[Tensor, "n k r"]
    hospital: Int[Tensor, " n"]  # index of the simulated hospital; images of one hospital share their shift
    unfused: int  # the first `unfused` candidates do not use the universe


EvidenceTables = Mapping[str, EvidenceTable]  # by universe, a key of `method.UNIVERSES`


@dataclass(frozen=True)
class EvidenceSetup:
    """Everything that evidence is computed with. `priors` and `locations` have the keys of `method.UNIVERSES`."""

    network: nn.Module
    mixing: LayerWeights
    priors: Mapping[str, MorphologyPrior]
    locations: Mapping[str, PointLocations]
    benchmark: Benchmark
    readings: str = "four"  # a key of READING_SETS


def evidence_setup(
    network: nn.Module,
    mixing: LayerWeights,
    prior: MorphologyPrior,
    train: Mapping[str, Arrays],
    benchmark: Benchmark,
    readings: str = "four",
    controls: bool = False,
) -> EvidenceSetup:
    """Measure the point locations on training images; without `controls`, for the learned universe only."""
    batchnorm.use(network, batchnorm.EVAL)
    priors = {name: variant(prior) for name, variant in UNIVERSES.items() if controls or name == "learned"}
    device = next(network.parameters()).device

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for site in train.values():
            for images, labels in islice(_chunks(site, 1, 8, device), LOCATION_BATCHES):
                yield normalise(images, benchmark.normalisation), labels

    locations = point_locations(network, priors, batches())
    return EvidenceSetup(network, mixing, priors, locations, benchmark, readings)


def collect_evidence(
    setup: EvidenceSetup, arrays: Arrays, group: int, seed: int | None, *, chunk: int = 16
) -> EvidenceTables:
    """Evidence of one site.

    Args:
        setup: network, priors and point locations.
        arrays: images with masks.
        group: images that share BatchNorm statistics and a simulated shift. Images beyond the last full group are
            left out, because a smaller group would have other statistics.
        seed: seed of the simulated shifts; None leaves the images as they are, and counts a chunk as one hospital.
        chunk: images of a forward pass, rounded down to full groups.
    """
    device, benchmark = next(setup.network.parameters()).device, setup.benchmark
    readings = READING_SETS[setup.readings]
    parts: list[EvidenceTables] = []
    for images, labels in _chunks(arrays, group, chunk, device):
        if seed is not None:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + len(parts))
            images, labels = simulate(images, labels, generator, group=group)
        images = normalise(images, benchmark.normalisation)
        read = predict_readings(
            setup.network,
            setup.priors["learned"],
            images,
            readings=readings,
            mixing=setup.mixing,
            group=group,
        )
        hospital = torch.arange(len(images), device=device) // (group if seed is not None else len(images))
        tables: dict[str, EvidenceTable] = {}
        for universe, prior in setup.priors.items():
            predictions = predict_candidates(read, prior, candidates_of(readings))
            P, regions = predictions.logits.softmax(2), benchmark.regions
            signals = universe_signals(prior, setup.locations[universe], predictions.projected, P, regions)
            if universe == "learned":  # the other signals are the same for all universes
                R = region_probabilities(predictions.logits.flatten(0, 1), regions).unflatten(0, P.shape[:2])
                signals |= prediction_signals(predictions, P, R, list(regions))
            scores = candidate_dice(predictions.logits, labels, benchmark.regions)
            tables[universe] = EvidenceTable(signals, scores, hospital, predictions.unfused)
        parts.append(tables)
    return concatenate_tables(parts)


def candidate_dice(
    logits: Float[Tensor, "k b l h w"], labels: Tensor, regions: Regions
) -> Float[Tensor, "b k r"]:
    """Dice of every candidate, by image and region."""
    truth = region_masks(labels, regions)
    return torch.stack([dice(region_probabilities(x, regions), truth) for x in logits], 1)


def concatenate_tables(parts: list[EvidenceTables]) -> EvidenceTables:
    """Join tables over images; hospitals are renumbered, because no two parts share one."""

    def joined(tables: list[EvidenceTable]) -> EvidenceTable:
        signals = {name: torch.cat([t.signals[name] for t in tables], 1) for name in tables[0].signals}
        hospitals, offset = [], 0
        for table in tables:
            hospitals.append(table.hospital + offset)
            offset += int(table.hospital[-1]) + 1
        scores = torch.cat([table.dice for table in tables])
        return EvidenceTable(signals, scores, torch.cat(hospitals), tables[0].unfused)

    return {universe: joined([part[universe] for part in parts]) for universe in parts[0]}


def _chunks(arrays: Arrays, group: int, chunk: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Images in [0, 1] with label maps, in chunks of full groups."""
    assert arrays.masks is not None
    usable, size = len(arrays.cases) // group * group, chunk // group * group
    for start in range(0, usable, size):
        rows = slice(start, min(start + size, usable))
        yield arrays.images[rows].to(device).float() / 255, arrays.masks[rows].to(device).long()
