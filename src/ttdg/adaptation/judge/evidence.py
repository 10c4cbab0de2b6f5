"""Evidence: signals and true Dice of every candidate on labelled images, from which the regressors are fitted."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ttdg.adaptation.judge.candidates import average_readings, candidates_of, fuse
from ttdg.adaptation.judge.method import UNIVERSES
from ttdg.adaptation.judge.reading_passes import predict_readings
from ttdg.adaptation.judge.readings import READING_SETS
from ttdg.adaptation.judge.signals import prediction_signals
from ttdg.data import Arrays, Benchmark, normalise
from ttdg.data.shifts import simulate
from ttdg.metrics import accuracy, region_masks
from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.grouped import LayerWeights
from ttdg.prior import MorphologyPrior
from ttdg.prior.locations import PointLocations, point_locations
from ttdg.prior.universe_signals import universe_signals
from ttdg.types import Regions

SAME_POINTS = (
    ("learned", "untyped"),
    ("random",),
)  # universes with the same points give the same predictions
CPU_IMAGES = 4  # images whose evidence a CPU computes together; with more, maps leave its cache
LOCATION_IMAGES = 128  # training images of each site from which point locations are measured, at most


@dataclass(frozen=True)
class EvidenceTable:
    """Signals and Dice of `k` candidates for `n` images; for a classification, `dice` is the accuracy (r = 1)."""

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
    batchnorm.use_if_any(network, batchnorm.EVAL)
    priors = {name: variant(prior) for name, variant in UNIVERSES.items() if controls or name == "learned"}
    device = next(network.parameters()).device
    size = CPU_IMAGES if device.type == "cpu" else 2 * CPU_IMAGES

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for site in train.values():
            for images, labels in islice(_chunks(site, 1, size, device), LOCATION_IMAGES // size):
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
        chunk: images that are shifted together, rounded down to full groups; a GPU also predicts them together.
    """
    device = next(setup.network.parameters()).device
    step = chunk if device.type != "cpu" else max(group, CPU_IMAGES // group * group)
    parts: list[EvidenceTables] = []
    for images, labels in _chunks(arrays, group, chunk, device):
        if seed is not None:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + len(parts))
            structures = setup.benchmark.task == "segmentation"
            images, labels = simulate(images, labels, generator, group=group, anatomy=structures)
        images = normalise(images, setup.benchmark.normalisation)
        hospital = torch.arange(len(images), device=device) // (group if seed is not None else len(images))
        pieces = zip(images.split(step), labels.split(step), hospital.split(step), strict=True)
        parts.append(_joined([_tables(setup, *piece, group) for piece in pieces]))
    return concatenate_tables(parts)


def _tables(
    setup: EvidenceSetup, images: Tensor, labels: Tensor, hospital: Int[Tensor, " b"], group: int
) -> EvidenceTables:
    """Evidence of normalised images that are full groups.

    Universes share all that does not depend on them: the readings, their averages, and the signals of
    `prediction_signals`.
    """
    readings, regions = READING_SETS[setup.readings], setup.benchmark.regions
    candidates, truth = candidates_of(readings), region_masks(labels, regions)
    read = predict_readings(
        setup.network, setup.priors["learned"], images, readings=readings, mixing=setup.mixing, group=group
    )
    averaged = average_readings(read, candidates)
    tables: dict[str, EvidenceTable] = {}
    for universes in SAME_POINTS:
        names = [name for name in universes if name in setup.priors]
        if not names:
            continue
        predictions = fuse(averaged, setup.priors[names[0]], candidates)
        P = predictions.logits.softmax(2)
        R, V, weight = region_maps(P, regions), predictions.projected, predictions.weight
        classified = setup.benchmark.task == "classification"
        scores = candidate_accuracy(P, labels) if classified else candidate_dice(R, truth)
        for name in names:
            signals = universe_signals(setup.priors[name], setup.locations[name], V, P, regions, weight)
            if name == "learned":  # the other signals are the same for all universes
                signals |= prediction_signals(predictions, P, R, list(regions))
            tables[name] = EvidenceTable(signals, scores, hospital, predictions.unfused)
    return tables


def region_maps(P: Float[Tensor, "k b l h w"], regions: Regions) -> Float[Tensor, "k b r h w"]:
    """Region probabilities: the sums of the probabilities of their labels."""
    sums = [reduce(torch.add, [P[:, :, label] for label in labels]) for labels in regions.values()]
    return torch.stack(sums, 2).clamp_(max=1)


def candidate_dice(R: Float[Tensor, "k b r h w"], truth: Bool[Tensor, "b r h w"]) -> Float[Tensor, "b k r"]:
    """`ttdg.metrics.dice` of every candidate, by image and region, from masks instead of histograms."""
    masks = R >= 0.5
    both = masks.flatten(3).sum(3) + truth.flatten(2).sum(2)
    dice = 2 * (masks & truth).flatten(3).sum(3).double() / both
    return dice.where(both > 0, 1).movedim(0, 1)


def candidate_accuracy(P: Float[Tensor, "k b l h w"], labels: Int[Tensor, "b h w"]) -> Float[Tensor, "b k 1"]:
    """`ttdg.metrics.accuracy` of every candidate and image."""
    logits = P.clamp(min=1e-7).log().flatten(0, 1)
    right = accuracy(logits, labels.expand(len(P), *labels.shape).flatten(0, 1))
    return right.view(len(P), -1).T[..., None]


def _joined(pieces: list[EvidenceTables]) -> EvidenceTables:
    """Join pieces of one chunk over images; hospitals keep their numbers."""

    def joined(tables: list[EvidenceTable]) -> EvidenceTable:
        signals = {name: torch.cat([t.signals[name] for t in tables], 1) for name in tables[0].signals}
        dice, hospital = (torch.cat([getattr(t, name) for t in tables]) for name in ("dice", "hospital"))
        return EvidenceTable(signals, dice, hospital, tables[0].unfused)

    return {universe: joined([piece[universe] for piece in pieces]) for universe in pieces[0]}


def concatenate_tables(parts: list[EvidenceTables]) -> EvidenceTables:
    """Join tables over images; hospitals are renumbered, because no two parts share one."""
    renumbered: list[EvidenceTables] = []
    offset = 0
    for part in parts:
        renumbered.append(
            {name: replace(table, hospital=table.hospital + offset) for name, table in part.items()}
        )
        offset += int(part["learned"].hospital[-1]) + 1
    return _joined(renumbered)


def _chunks(arrays: Arrays, group: int, chunk: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Images in [0, 1] with label maps, in chunks of full groups."""
    assert arrays.masks is not None
    usable, size = len(arrays.cases) // group * group, chunk // group * group
    for start in range(0, usable, size):
        rows = slice(start, min(start + size, usable))
        yield arrays.images[rows].to(device).float() / 255, arrays.masks[rows].to(device).long()
