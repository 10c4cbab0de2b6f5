"""Expansion of a config into jobs, and the table entry of each scoring."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ttdg.adaptation import METHODS
from ttdg.bench.config import Config, Experiment
from ttdg.bench.config_fields import StreamName
from ttdg.bench.jobs import KINDS, Fitting, Job, Scoring, Training, Tuning, key_of, kind_of
from ttdg.bench.protocols import Target, Transfer, transfers
from ttdg.bench.rows import method_variants
from ttdg.bench.run_file import TableEntry
from ttdg.bench.variants import MethodVariant
from ttdg.data import DataSummary, split
from ttdg.data.benchmark import task_of
from ttdg.errors import UserError
from ttdg.evaluation.tuning import Search, hospital_count, stream_length
from ttdg.training import Recipe


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
    _check_continual(experiment, splits)
    rows = method_variants(
        experiment.methods, config.parts, config.recipe, experiment.tuned, data.benchmark["name"],
        experiment.views, experiment.statistics, task_of(data.benchmark), experiment.gate,
    )  # fmt: skip
    seeds = config.seeds if experiment.seeds is None else experiment.seeds
    prints: dict[tuple[Target, ...], dict[str, str]] = {}
    sites = data.sites.items() if experiment.tuned else ()
    counts = {name: (len(site.cases), len(split(site.cases)[1])) for name, site in sites}
    for seed, transfer, row in itertools.product(seeds, splits, rows):
        model = _prepared_model(row, data, transfer.sources, seed)
        for stream, batch in itertools.product(experiment.streams, experiment.batches):
            variant, tuning, required = row.on_stream(stream), None, model.jobs
            if variant.configurations:
                search = _search(
                    config,
                    experiment,
                    [counts[name] for name in transfer.sources],
                    variant.method,
                    stream,
                    batch,
                )
                tuning, tuning_jobs = _tuning(config, variant, data, transfer.sources, search)
                required = {**model.jobs, **tuning_jobs}
            for targets in _streams(stream, transfer, seed):
                if targets not in prints:
                    prints[targets] = {
                        s: data.fingerprints[s] for t in targets for s in _scorable(t, data, experiment.cases)
                    }
                job = Scoring(
                    model.training, variant.method, variant.options, variant.default_options(), targets,
                    prints[targets], stream, batch, seed, experiment.cases, experiment.limit, experiment.shuffle,
                    experiment.surfaces, experiment.instances, model.fittings, tuning, variant.views,
                    experiment.learn if METHODS[variant.method].memory else "all", experiment.order, variant.statistics,
                    config.deterministic, variant.gate,
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


def _search(
    config: Config,
    experiment: Experiment,
    counts: Sequence[tuple[int, int]],
    method: str,
    stream: StreamName,
    batch: int,
) -> Mapping[str, Any]:
    """Return the search of a row: hospitals whose streams have the kind, the batch size and the length of the row's.

    It depends on the experiment's limit and on `counts`, the images and held-out images of each source site, never on a
    target. A method without memory answers every stream alike, so its streams share one search.
    """
    assert config.tune is not None, "the config validator guarantees this"
    held_out = [count for _, count in counts]
    sizes = held_out if experiment.cases == "held-out" else [size for size, _ in counts]
    images = config.tune.images or stream_length(experiment.limit, sizes)
    hospitals = config.tune.hospitals or hospital_count(images)
    if config.tune.budget is not None:
        images = max(1, min(images, config.tune.budget // hospitals))
    return Search(
        hospitals,
        images,
        config.tune.batch or batch,
        config.tune.farthest,
        config.tune.seed,
        stream if METHODS[method].memory else "online",
        repeat=any(0 < count < images for count in held_out),
        extensions=config.tune.extensions,
    ).to_dict()


def _tuning(
    config: Config,
    variant: MethodVariant,
    data: DataSummary,
    sources: Sequence[str],
    search: Mapping[str, Any],
) -> tuple[str, Mapping[str, Job]]:
    """Return the tuning job of a row with the jobs it requires.

    Options are chosen once per split, batch size and stream, with the model of the run's first seed, and used for all
    seeds. A row with the gate has the search of the row without it.
    """
    row = variant.without_gate()
    model = _prepared_model(row, data, sources, config.seeds[0])
    job = Tuning(
        model.training,
        row.method,
        search,
        row.configurations,
        row.default_options(),
        model.fittings,
        row.statistics,
        config.deterministic,
    )
    return key_of(job), {**model.jobs, key_of(job): job}


def _streams(stream: str, transfer: Transfer, seed: int) -> list[tuple[Target, ...]]:
    """Group targets into streams: a continual stream has all targets, any other stream has one.

    The seed says with which target a continual stream begins; the others follow in their order, the first after the
    last. Over several seeds no site is always the first.
    """
    if stream != "continual":
        return [(target,) for target in transfer.targets]
    first = seed % len(transfer.targets)
    return [transfer.targets[first:] + transfer.targets[:first]]


def _check_continual(experiment: Experiment, splits: Sequence[Transfer]) -> None:
    """Raise a UserError for a continual stream over single targets, because it would repeat the online stream."""
    if "continual" in experiment.streams and all(len(transfer.targets) == 1 for transfer in splits):
        raise UserError(
            f"{experiment.name!r} has a continual stream, but each of its models has one target; use the protocol "
            "single-to-each or fixed-source, or the stream online"
        )


def _training(recipe: Mapping[str, Any], data: DataSummary, sources: Sequence[str], seed: int) -> Training:
    Recipe.from_dict(recipe).check_task(task_of(data.benchmark))
    fingerprints = {site: data.fingerprints[site] for site in sources}
    return Training(data.benchmark, fingerprints, {**recipe, "seed": seed})


def _scorable(target: Target, data: DataSummary, cases: str) -> tuple[str, ...]:
    for name in target.sites:
        site = data.sites[name]
        if not site.cases or not all(case.labelled for case in site.cases):
            raise UserError(
                f"site {name!r} lacks masks, which scoring needs; add the masks or choose other sites"
            )
        if cases == "held-out" and not split(site.cases)[1]:
            raise UserError(
                f"site {name!r} has too few images to hold out a fifth; add images or remove the site"
            )
    return target.sites
