"""Run one job: train a source model, fit a part, tune a method, or score it. Results are written atomically."""

import gc
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from ttdg.adaptation import METHODS, seed_all
from ttdg.adaptation.answer_views import AveragedAnswers
from ttdg.bench.fitting import FitSource, fit_from_yaml
from ttdg.bench.folder import RunFolder, exclusive_lock
from ttdg.bench.jobs import Fitting, Job, Scoring, Training, Tuning, key_of, to_dict
from ttdg.bench.scoring_job import OpenScoring, open_model, open_scoring
from ttdg.checkpoints import load, save_part, versions
from ttdg.data import Benchmark, Sources, find_sites, load_sources
from ttdg.data.image_cache import held_out_images
from ttdg.evaluation.evaluate import Evaluation, evaluate, evaluate_with_own
from ttdg.evaluation.records import Row, write_rows
from ttdg.evaluation.reproducibility import code_hash
from ttdg.evaluation.scoring import measure_for
from ttdg.evaluation.tuned_options import write_tuned
from ttdg.evaluation.tuning import Search, search_record, tune
from ttdg.files import atomic_folder
from ttdg.networks.determinism import deterministic_algorithms
from ttdg.training import Recipe, make_fabric, train

T = TypeVar("T")
_last_sources: dict[tuple[Path, str], Sources] = {}  # by data folder and training key, which implies the rest


def execute_job(job: Job, folder: RunFolder) -> None:
    """Run the job unless it is done. If two workers take the same job, the second waits and then finds it done."""
    with exclusive_lock(folder.claim(job)):
        if folder.done(job):
            return
        torch.set_num_threads(folder.threads)
        try:
            _run(job, folder)
        finally:
            _release(folder.device)


def _release(device: str) -> None:
    """Free cached GPU memory, because other workers share the GPU."""
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def _run(job: Job, folder: RunFolder) -> None:
    if isinstance(job, Training):
        _train(job, folder)
    elif isinstance(job, Fitting):
        _fit(job, folder)
    elif isinstance(job, Tuning):
        write_tuned(folder.tuned(key_of(job)), tune_job(job, folder))
    else:
        for about, rows in score_together(job, folder):
            write_rows(folder.record(about["key"]), about, rows)


def _train(job: Training, folder: RunFolder) -> None:
    benchmark = Benchmark.from_dict(job.benchmark)
    sources = _sources(folder.data, key_of(job), job.sources, benchmark)
    recipe = Recipe.from_dict(job.recipe, folder.encoder_weights)
    train(
        sources.train, sources.held_out, benchmark, recipe, folder.model(key_of(job)),
        fabric=make_fabric(recipe, folder.device), provenance=sources.provenance,
    )  # fmt: skip


def _sources(data: Path, training: str, names: Iterable[str], benchmark: Benchmark) -> Sources:
    """Decode the sources once for a model and for the parts that the same process fits to it."""
    if (data, training) not in _last_sources:
        _last_sources.clear()
        _last_sources[data, training] = load_sources(find_sites(data, list(names)), benchmark)
    return _last_sources[data, training]


def _fit(job: Fitting, folder: RunFolder) -> None:
    model = load(folder.model(job.training), folder.device)
    sources = _sources(folder.data, job.training, model.card.sources, model.card.benchmark)
    seed = int(model.card.recipe.get("seed", 0))
    seed_all(seed)
    part = fit_from_yaml(job.part, FitSource(model, sources, seed), job.settings)
    with atomic_folder(folder.part(key_of(job))) as temporary:
        save_part(temporary, job.part, part, model.card.sha256)


def tune_job(job: Tuning, folder: RunFolder) -> dict[str, Any]:
    """Choose a method's options and return every trial. Only held-out images of the model's sources are read."""
    model = open_model(job.training, job.fittings, folder)
    card = model.card
    sites = find_sites(folder.data, list(card.sources))
    images = [
        held_out_images(sites[name], card.benchmark, card.sources[name]["fingerprint"])
        for name in card.sources
    ]
    with _algorithms(job):
        found = tune(model, job.method, images, Search(**job.search), job.configurations, job.statistics)
    base = {} if job.statistics == "own" else {"statistics": job.statistics}
    return {"method": job.method, "sources": list(card.sources), "model": card.sha256, "search": dict(job.search),
            **base, **search_record(found), "code": code_hash(), "versions": versions()}  # fmt: skip


def _algorithms(job: Tuning | Scoring) -> AbstractContextManager[None]:
    """Return the context in which the job computes."""
    return deterministic_algorithms() if job.deterministic else nullcontext()


def score_job(job: Scoring, folder: RunFolder) -> tuple[dict[str, Any], list[Row]]:
    """Score a method on its targets; return the metadata and the rows of the record."""
    start = time.perf_counter()
    with _algorithms(job):
        opened = open_scoring(job, folder)
        result = _run_stream(opened, evaluate)
    return _record(opened, job, result, start)


def score_together(job: Scoring, folder: RunFolder) -> list[tuple[dict[str, Any], list[Row]]]:
    """Score a method on its targets; return the metadata and the rows of each record that one stream gives.

    A stream whose answers are averaged over views also gives the record of the same scoring without views, unless it
    exists.
    """
    start, plain = time.perf_counter(), replace(job, views="plain")
    with _algorithms(job):
        opened = open_scoring(job, folder)
        if not isinstance(opened.adapter, AveragedAnswers) or folder.done(plain):
            result = _run_stream(opened, evaluate)
            return [_record(opened, job, result, start)]
        averaged, own = _run_stream(opened, evaluate_with_own)
    about, rows = _record(opened, plain, own, start)
    return [(about | {"in_stream_of": key_of(job)}, rows), _record(opened, job, averaged, start)]


def _run_stream(opened: OpenScoring, evaluation: Callable[..., T]) -> T:
    """Run the stream of a scoring with one of the two functions that evaluate an adapter."""
    job, benchmark = opened.job, opened.benchmark
    return evaluation(
        opened.adapter, opened.targets, job.stream, job.batch, benchmark.regions,
        memory=METHODS[job.method].memory,
        measure=measure_for(benchmark, job.surfaces, job.instances),
    )  # fmt: skip


def _record(
    opened: OpenScoring, job: Scoring, result: Evaluation, start: float
) -> tuple[dict[str, Any], list[Row]]:
    about = {
        **result.about,
        "key": key_of(job),
        "job": to_dict(job),
        "model": opened.model.card.sha256,
        "options": dict(opened.options),
        "all_seconds": time.perf_counter() - start,  # loading included
    }
    return about, list(result.rows)
