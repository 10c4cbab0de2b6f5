"""From a config and the data that are there to jobs: which models, which scorings, and which table each belongs to."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ttdg.bench.config import Config, Experiment
from ttdg.bench.jobs import KINDS, Fitting, Job, Scoring, Training, Tuning, key_of, kind_of
from ttdg.bench.rows import Variant, recipe_of, variants
from ttdg.bench.run_file import TableEntry
from ttdg.checkpoints import file_hash
from ttdg.data import Benchmark, Site, fingerprint, split
from ttdg.errors import UserError
from ttdg.evaluation.protocols import Target, Transfer, transfers


@dataclass(frozen=True)
class Plan:
    jobs: Mapping[str, Job]
    entries: tuple[TableEntry, ...]


@dataclass(frozen=True)
class Survey:
    """What the plan is made against: the benchmark, its sites, and their fingerprints."""

    benchmark: Benchmark
    sites: Mapping[str, Site]
    prints: Mapping[str, str]


def survey(benchmark: Benchmark, sites: Mapping[str, Site]) -> Survey:
    return Survey(benchmark, sites, {name: fingerprint(site.cases) for name, site in sites.items()})


def plan_jobs(config: Config, world: Survey) -> Plan:
    """Every job of every experiment, each once. Wrong names and options are errors here, before anything runs.

    Within an experiment what others wait for comes first: models, parts, tunings, then scorings.
    """
    jobs: dict[str, Job] = {}
    entries = []
    for experiment in config.experiments:
        mine: dict[str, Job] = {}
        for job, entry, before in _expand(config, experiment, world):
            mine |= before
            mine[entry.job] = job
            entries.append(entry)
        jobs |= dict(sorted(mine.items(), key=lambda item: list(KINDS).index(kind_of(item[1]))))
    return Plan(jobs, tuple(entries))


@dataclass(frozen=True)
class Base:
    """What a row stands on: a source model with the parts its method needs."""

    training: str
    fittings: Mapping[str, str]
    jobs: Mapping[str, Job]


def _expand(
    config: Config, experiment: Experiment, world: Survey
) -> Iterator[tuple[Scoring, TableEntry, Mapping[str, Job]]]:
    rounds = transfers(experiment.protocol, list(world.sites), experiment.sources, experiment.targets)
    chosen = variants(experiment.methods, config.parts, config.recipe, experiment.tuned)
    seeds = config.seeds if experiment.seeds is None else experiment.seeds
    prints: dict[tuple[Target, ...], dict[str, str]] = {}
    for seed, transfer, variant in itertools.product(seeds, rounds, chosen):
        base = _base(variant, world, transfer.sources, seed)
        tuning, before = _tuning(config, variant, world, transfer.sources)
        before = {**base.jobs, **before}
        for stream, batch in itertools.product(experiment.streams, experiment.batches):
            for targets in _streams(stream, transfer):
                if targets not in prints:
                    prints[targets] = {
                        s: world.prints[s] for t in targets for s in _scorable(t, world, experiment.cases)
                    }
                job = Scoring(
                    base.training, variant.method, variant.options, variant.left_out(), targets, prints[targets],
                    stream, batch, seed, experiment.cases, experiment.limit, experiment.shuffle, experiment.surfaces,
                    experiment.instances, base.fittings, tuning,
                )  # fmt: skip
                names = "+".join(transfer.sources)
                entry = TableEntry(experiment.name, experiment.protocol, variant.label, names, key_of(job))
                yield job, entry, before


def _base(variant: Variant, world: Survey, sources: Sequence[str], seed: int) -> Base:
    training = _training(variant.recipe, world, sources, seed)
    source = key_of(training)
    fits = {name: Fitting(source, name, settings) for name, settings in variant.parts.items()}
    keys = {name: key_of(fit) for name, fit in fits.items()}
    return Base(source, keys, {source: training, **{keys[name]: fit for name, fit in fits.items()}})


def _tuning(
    config: Config, variant: Variant, world: Survey, sources: Sequence[str]
) -> tuple[str | None, Mapping[str, Job]]:
    """Options are chosen once a split, with the model of the run's first seed, and used for all seeds."""
    if not variant.configurations:
        return None, {}
    assert config.tune is not None, "the config was checked for this"
    base = _base(variant, world, sources, config.seeds[0])
    search = config.tune.model_dump()
    job = Tuning(
        base.training, variant.method, search, variant.configurations, variant.left_out(), base.fittings
    )
    return key_of(job), {**base.jobs, key_of(job): job}


def _streams(stream: str, transfer: Transfer) -> list[tuple[Target, ...]]:
    """A continual stream runs through all targets without a reset; every other meets each target afresh."""
    return [transfer.targets] if stream == "continual" else [(target,) for target in transfer.targets]


def _training(fields: Mapping[str, Any], world: Survey, sources: Sequence[str], seed: int) -> Training:
    recipe = recipe_of(fields, seed)
    weights = {"encoder_weights": _hash(recipe.encoder_weights) if recipe.encoder_weights else None}
    prints = {site: world.prints[site] for site in sources}
    return Training(world.benchmark.to_dict(), prints, recipe.to_dict() | weights)


@lru_cache(4)
def _hash(path: str) -> str:
    return file_hash(Path(path))


def _scorable(target: Target, world: Survey, cases: str) -> tuple[str, ...]:
    for name in target.sites:
        site = world.sites[name]
        if not site.cases or any(case.mask is None for case in site.cases):
            raise UserError(
                f"site {name!r} lacks masks, and scoring needs them; add them or name other sites"
            )
        if cases == "held-out" and not split(site.cases)[1]:
            raise UserError(f"site {name!r} is too small to hold a fifth out; add images or take it out")
    return target.sites


def with_config_size(benchmark: Benchmark, config: Config) -> Benchmark:
    """The benchmark with the run's own picture size, where it asks for one."""
    return benchmark if config.size is None else replace(benchmark, size=config.size)
