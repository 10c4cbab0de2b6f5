"""Expansion of a config into jobs, and the table entry of each scoring."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ttdg.bench.config import Config, Experiment
from ttdg.bench.jobs import KINDS, Fitting, Job, Scoring, Training, Tuning, key_of, kind_of
from ttdg.bench.protocols import Target, Transfer, transfers
from ttdg.bench.rows import MethodVariant, method_variants
from ttdg.bench.run_file import TableEntry
from ttdg.data import DataSummary, split
from ttdg.errors import UserError


@dataclass(frozen=True)
class JobPlan:
    """Jobs by key, and the table entries of the scorings."""

    jobs: Mapping[str, Job]
    entries: tuple[TableEntry, ...]


def plan_jobs(config: Config, data: DataSummary) -> JobPlan:
    """Expand all experiments into jobs, each job once; wrong names and options raise a UserError.

    Within an experiment, jobs that others depend on come first: trainings, fittings, tunings, then scorings.
    """
    jobs: dict[str, Job] = {}
    entries = []
    for experiment in config.experiments:
        mine: dict[str, Job] = {}
        for job, entry, required in _expand(config, experiment, data):
            mine |= required
            mine[entry.job] = job
            entries.append(entry)
        jobs |= dict(sorted(mine.items(), key=lambda item: list(KINDS).index(kind_of(item[1]))))
    return JobPlan(jobs, tuple(entries))


@dataclass(frozen=True)
class _PreparedModel:
    """Keys of a source model and the parts fitted to it, and the jobs that make them."""

    training: str
    fittings: Mapping[str, str]
    jobs: Mapping[str, Job]


def _expand(
    config: Config, experiment: Experiment, data: DataSummary
) -> Iterator[tuple[Scoring, TableEntry, Mapping[str, Job]]]:
    splits = transfers(experiment.protocol, list(data.sites), experiment.sources, experiment.targets)
    rows = method_variants(experiment.methods, config.parts, config.recipe, experiment.tuned)
    seeds = config.seeds if experiment.seeds is None else experiment.seeds
    prints: dict[tuple[Target, ...], dict[str, str]] = {}
    for seed, transfer, variant in itertools.product(seeds, splits, rows):
        model = _prepared_model(variant, data, transfer.sources, seed)
        tuning, tuning_jobs = _tuning(config, variant, data, transfer.sources)
        required = {**model.jobs, **tuning_jobs}
        for stream, batch in itertools.product(experiment.streams, experiment.batches):
            for targets in _streams(stream, transfer):
                if targets not in prints:
                    prints[targets] = {
                        s: data.fingerprints[s] for t in targets for s in _scorable(t, data, experiment.cases)
                    }
                job = Scoring(
                    model.training, variant.method, variant.options, variant.default_options(), targets,
                    prints[targets], stream, batch, seed, experiment.cases, experiment.limit, experiment.shuffle,
                    experiment.surfaces, experiment.instances, model.fittings, tuning,
                )  # fmt: skip
                names = "+".join(transfer.sources)
                entry = TableEntry(experiment.name, experiment.protocol, variant.label, names, key_of(job))
                yield job, entry, required


def _prepared_model(
    variant: MethodVariant, data: DataSummary, sources: Sequence[str], seed: int
) -> _PreparedModel:
    training = _training(variant.recipe, data, sources, seed)
    source = key_of(training)
    fits = {name: Fitting(source, name, settings) for name, settings in variant.parts.items()}
    keys = {name: key_of(fit) for name, fit in fits.items()}
    return _PreparedModel(source, keys, {source: training, **{keys[name]: fit for name, fit in fits.items()}})


def _tuning(
    config: Config, variant: MethodVariant, data: DataSummary, sources: Sequence[str]
) -> tuple[str | None, Mapping[str, Job]]:
    """Return the tuning job of a row, if it has one, with the jobs it requires.

    Options are chosen once per split, with the model of the run's first seed, and used for all seeds.
    """
    if not variant.configurations:
        return None, {}
    assert config.tune is not None, "the config validator guarantees this"
    model = _prepared_model(variant, data, sources, config.seeds[0])
    search = config.tune.model_dump()
    job = Tuning(
        model.training,
        variant.method,
        search,
        variant.configurations,
        variant.default_options(),
        model.fittings,
    )
    return key_of(job), {**model.jobs, key_of(job): job}


def _streams(stream: str, transfer: Transfer) -> list[tuple[Target, ...]]:
    """Group targets into streams: a continual stream has all targets, any other stream has one."""
    return [transfer.targets] if stream == "continual" else [(target,) for target in transfer.targets]


def _training(recipe: Mapping[str, Any], data: DataSummary, sources: Sequence[str], seed: int) -> Training:
    fingerprints = {site: data.fingerprints[site] for site in sources}
    return Training(data.benchmark, fingerprints, {**recipe, "seed": seed})


def _scorable(target: Target, data: DataSummary, cases: str) -> tuple[str, ...]:
    for name in target.sites:
        site = data.sites[name]
        if not site.cases or any(case.mask is None for case in site.cases):
            raise UserError(
                f"site {name!r} lacks masks, which scoring needs; add the masks or choose other sites"
            )
        if cases == "held-out" and not split(site.cases)[1]:
            raise UserError(
                f"site {name!r} has too few images to hold out a fifth; add images or remove the site"
            )
    return target.sites
