"""From a config and the data that are there to jobs: which models, which scorings, and which table each belongs to."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ttdg.data import Benchmark, Site, fingerprint, split
from ttdg.errors import UserError
from ttdg.experiment.config import Config, Experiment
from ttdg.experiment.jobs import Fitting, Job, Scoring, Training, key_of
from ttdg.experiment.protocol import Target, Transfer, transfers
from ttdg.experiment.runfile import Entry
from ttdg.experiment.variants import recipe_of, variants
from ttdg.training.checkpoint import file_hash


@dataclass(frozen=True)
class Plan:
    jobs: Mapping[str, Job]
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class World:
    """What the plan is made against: the benchmark, its sites, and their fingerprints."""

    benchmark: Benchmark
    sites: Mapping[str, Site]
    prints: Mapping[str, str]


def survey(benchmark: Benchmark, sites: Mapping[str, Site]) -> World:
    return World(benchmark, sites, {name: fingerprint(site.cases) for name, site in sites.items()})


def plan(config: Config, world: World) -> Plan:
    """Every job of every experiment, each once. Wrong names and options are errors here, before anything runs."""
    jobs: dict[str, Job] = {}
    entries = []
    for experiment in config.experiments:
        for job, entry, before in _expand(config, experiment, world):
            jobs |= before
            jobs[entry.job] = job
            entries.append(entry)
    return Plan(jobs, tuple(entries))


def _expand(
    config: Config, experiment: Experiment, world: World
) -> Iterator[tuple[Scoring, Entry, dict[str, Job]]]:
    rounds = transfers(experiment.protocol, list(world.sites), experiment.sources, experiment.targets)
    chosen = variants(experiment.methods, config.parts, config.recipe)
    seeds = config.seeds if experiment.seeds is None else experiment.seeds
    for seed, transfer in itertools.product(seeds, rounds):
        for variant, stream in itertools.product(chosen, experiment.streams):
            training = _training(variant.recipe, world, transfer.sources, seed)
            source = key_of(training)
            fits = {name: Fitting(source, name, settings) for name, settings in variant.parts.items()}
            before: dict[str, Job] = {source: training, **{key_of(fit): fit for fit in fits.values()}}
            for batch, targets in itertools.product(experiment.batches, _streams(stream, transfer)):
                job = Scoring(
                    source,
                    variant.method,
                    variant.options,
                    variant.left_out(),
                    targets,
                    {
                        site: world.prints[site]
                        for target in targets
                        for site in _scorable(target, world, experiment.cases)
                    },
                    stream,
                    batch,
                    seed,
                    experiment.cases,
                    experiment.limit,
                    experiment.shuffle,
                    experiment.surfaces,
                    experiment.instances,
                    {name: key_of(fit) for name, fit in fits.items()},
                )
                names = "+".join(transfer.sources)
                entry = Entry(experiment.name, experiment.protocol, variant.label, names, key_of(job))
                yield job, entry, before


def _streams(stream: str, transfer: Transfer) -> list[tuple[Target, ...]]:
    """A continual stream runs through all targets without a reset; every other meets each target afresh."""
    return [transfer.targets] if stream == "continual" else [(target,) for target in transfer.targets]


def _training(fields: Mapping[str, Any], world: World, sources: Sequence[str], seed: int) -> Training:
    recipe = recipe_of(fields, seed)
    weights = {"encoder_weights": _hash(recipe.encoder_weights) if recipe.encoder_weights else None}
    prints = {site: world.prints[site] for site in sources}
    return Training(world.benchmark.to_dict(), prints, recipe.to_dict() | weights)


@lru_cache(4)
def _hash(path: str) -> str:
    return file_hash(Path(path))


def _scorable(target: Target, world: World, cases: str) -> tuple[str, ...]:
    for name in target.sites:
        site = world.sites[name]
        if not site.cases or any(case.mask is None for case in site.cases):
            raise UserError(
                f"site {name!r} lacks masks, and scoring needs them; add them or name other sites"
            )
        if cases == "held-out" and not split(site.cases)[1]:
            raise UserError(f"site {name!r} is too small to hold a fifth out; add images or take it out")
    return target.sites


def narrowed(benchmark: Benchmark, config: Config) -> Benchmark:
    """The benchmark with the run's own picture size, where it asks for one."""
    return benchmark if config.size is None else replace(benchmark, size=config.size)
