"""Fitting the judge at source time, on held-out source images under simulated shifts."""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.judge.candidates import candidates_of
from ttdg.adaptation.judge.evidence import (
    EvidenceSetup,
    EvidenceTable,
    EvidenceTables,
    collect_evidence,
    concatenate_tables,
    evidence_setup,
)
from ttdg.adaptation.judge.finished_rounds import Keep, keep_nothing
from ttdg.adaptation.judge.method import EVIDENCE_SPECS, EvidenceKind, fallback_of
from ttdg.adaptation.judge.mixing import fit_mixing, layer_weights
from ttdg.adaptation.judge.quality import JudgeQuality, judge_quality
from ttdg.adaptation.judge.readings import READING_SETS
from ttdg.adaptation.judge.regressor import feature_matrix, fit_regressor
from ttdg.arguments import checked_seed
from ttdg.data import Arrays, Benchmark
from ttdg.errors import UserError, suggestion
from ttdg.networks import batchnorm
from ttdg.prior import MorphologyPrior
from ttdg.types import Part

MIN_IMAGES = 120  # shifted images that a site yields at least: a small site is shifted more often


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
    controls: bool = False,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
    keep: Keep = keep_nothing,
) -> Part:
    """Fit the part "judge": mixing weights of the layers, point locations, and one regressor for each evidence kind.

    The regressors are fitted on evidence of the held-out images as they are, and under simulated shifts in groups of 4
    images and of 1 image.

    Args:
        network: the source network, which is not changed.
        prior: the morphology prior of the network.
        train: training images by site, with masks; used for mixing weights and point locations.
        held_out: images by site, with masks, that the network was not trained on.
        benchmark: labels, regions and normalisation.
        draws: number of simulated shifts of each held-out site; by default 3, and more for a small site.
        mixing_steps: number of gradient steps that fit the mixing weights.
        readings: "four", "seven" or "eight", a key of READING_SETS. A network without BatchNorm always has "two".
        controls: also fit judges with a random universe and without the class mask, as controls.
        seed: seed of all random draws.
        progress: called after each of `count_rounds` rounds, with the number of rounds done.
        keep: keeps finished rounds (`finished_rounds`).
    """
    checked_seed(seed)
    if readings not in READING_SETS:
        raise UserError(f"unknown readings {readings!r}{suggestion(readings, READING_SETS)}")
    sites = (*train.values(), *held_out.values())
    if not count_rounds(held_out, draws) or any(site.masks is None for site in sites):
        raise UserError(
            "the judge is fitted on held-out source images with masks, and there are none; "
            "give source sites with masks, some of whose images are held out of training"
        )
    if not batchnorm.has_layers(network):
        readings = "two"  # readings differ in the statistics of BatchNorm
    network = copy.deepcopy(network).eval()  # the BatchNorm mode of the copy changes

    def mixing_weights() -> list[float]:
        fitted = fit_mixing(network, list(train.values()), benchmark, steps=mixing_steps, seed=seed)
        return [rho.item() for rho in fitted.values()]

    mixing = layer_weights(network, keep("mixing", mixing_weights))
    setup = evidence_setup(network, mixing, prior, train, benchmark, readings, controls)
    tables = evidence_tables(setup, held_out, draws=draws, seed=seed, progress=progress, keep=keep)
    return judge_part(tables, setup, seed=seed)


def evidence_tables(
    setup: EvidenceSetup,
    held_out: Mapping[str, Arrays],
    *,
    draws: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
    keep: Keep = keep_nothing,
) -> EvidenceTables:
    """Collect the evidence that the regressors are fitted on. The arguments are those of `fit_judge`."""
    parts: list[EvidenceTables] = []
    for number, (arrays, group, draw) in enumerate(_rounds(held_out, draws), 1):
        shift = None if draw is None else seed * 1000 + draw
        tables = keep(f"round-{number}", partial(_plain_evidence, setup, arrays, group, shift))
        parts.append({universe: EvidenceTable(**columns) for universe, columns in tables.items()})
        progress(number)
    return concatenate_tables(parts)


def _plain_evidence(
    setup: EvidenceSetup, arrays: Arrays, group: int, shift: int | None
) -> dict[str, dict[str, Any]]:
    """Evidence of one site as plain values."""
    return {
        universe: dict(vars(table))
        for universe, table in collect_evidence(setup, arrays, group, shift).items()
    }


def count_rounds(held_out: Mapping[str, Arrays], draws: int | None = None) -> int:
    """Number of rounds of a fit, and of calls of `progress`."""
    return len(list(_rounds(held_out, draws)))


def _rounds(held_out: Mapping[str, Arrays], draws: int | None) -> Iterator[tuple[Arrays, int, int | None]]:
    """Images, group size and number of the simulated shift (None: no shift) of every round.

    A site is used once as it is in groups of 4, under `draws` shifts in groups of 4, and under half as many shifts in
    groups of 1.
    """
    for arrays in held_out.values():
        times = draws or max(3, -(-MIN_IMAGES // max(1, len(arrays.cases))))
        if len(arrays.cases) >= 4:
            yield arrays, 4, None
            yield from ((arrays, 4, draw) for draw in range(times))
        if arrays.cases:
            yield from ((arrays, 1, times + draw) for draw in range(-(-times // 2)))


def judge_part(tables: EvidenceTables, setup: EvidenceSetup, *, seed: int = 0) -> Part:
    """Fit one regressor for each evidence kind, and pack them with all that the judge needs at test time."""
    tensors = {"mixing": torch.cat([torch.zeros(0), *(rho.cpu() for rho in setup.mixing.values())])}
    signal_names: dict[str, list[str]] = {}
    quality: JudgeQuality | None = None
    for universe, locations in setup.locations.items():
        tensors[f"places.{universe}"] = torch.stack([locations.radius, locations.spread, locations.use])
    for kind in (kind for kind, spec in EVIDENCE_SPECS.items() if spec.universe in tables):
        x, scores, names = regression_data(tables, kind)
        regressor = fit_regressor(x, scores, tables["learned"].hospital, seed=seed)
        tensors |= {f"{kind}.{name}": value for name, value in regressor.tensors().items()}
        signal_names[kind] = names
        if kind == "all":
            candidates = [candidate.name for candidate in candidates_of(READING_SETS[setup.readings])]
            quality = judge_quality(x, scores, tables["learned"].hospital, fallback_of(candidates), seed=seed)
    regions = {name: list(labels) for name, labels in setup.benchmark.regions.items()}
    settings = {
        "signals": signal_names,
        "regions": regions,
        "readings": setup.readings,
        "seed": seed,
        "images": len(tables["learned"].dice),
        "quality": quality,
        "prior": setup.priors["learned"].to_part().digest,
    }
    return Part(tensors, settings)


def regression_data(
    tables: EvidenceTables, kind: EvidenceKind
) -> tuple[Float[Tensor, "n k f"], Float[Tensor, "n k r"], list[str]]:
    """Features and target Dice of the regressor of one evidence kind, and the names of its signals."""
    spec = EVIDENCE_SPECS[kind]
    table = tables[spec.universe]
    candidates = table.dice.shape[1] if spec.fused else table.unfused
    names = [name for name in tables["learned"].signals if spec.uses_signal(name)]
    signals = {name: table.signals[name][:candidates] for name in names}
    return feature_matrix(signals, names), table.dice[:, :candidates], names
