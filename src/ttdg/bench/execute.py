"""Doing a job: train a source model, fit a part, tune or score a method. Each leaves one result, whole or nothing."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ttdg.bench.fitting import FitSource, fit
from ttdg.bench.folder import RunFolder, exclusive_lock
from ttdg.bench.jobs import Fitting, Job, Scoring, Training, Tuning, key_of, to_dict
from ttdg.bench.scoring_job import OpenScoring, open_model, open_scoring
from ttdg.checkpoints import load, save_part, versions
from ttdg.data import Benchmark, find_sites
from ttdg.evaluation.cost import counted_passes, forget_peak, peak_bytes, release
from ttdg.evaluation.images import BenchmarkKey, held_out_images
from ttdg.evaluation.records import Row, write_rows
from ttdg.evaluation.reproducibility import code_hash, seed_all
from ttdg.evaluation.scoring import Scorer
from ttdg.evaluation.tuned_options import write_tuned
from ttdg.evaluation.tuning import Search, search_record, tune
from ttdg.files import atomic_folder
from ttdg.training import Recipe, Sources, load_sources, make_fabric, train


def execute_job(job: Job, place: RunFolder) -> None:
    """Do the job unless it is done. Two workers on the same job: the second waits, then finds it done."""
    with exclusive_lock(place.claim(job)):
        if place.done(job):
            return
        torch.set_num_threads(place.threads)
        try:
            _do(job, place)
        finally:
            release(place.device)


def _do(job: Job, place: RunFolder) -> None:
    if isinstance(job, Training):
        _train(job, place)
    elif isinstance(job, Fitting):
        _fit(job, place)
    elif isinstance(job, Tuning):
        write_tuned(place.tuned(key_of(job)), tune_job(job, place))
    else:
        about, rows = score_job(job, place)
        write_rows(place.record(key_of(job)), about, rows)


def _train(job: Training, place: RunFolder) -> None:
    benchmark = Benchmark.from_dict(job.benchmark)
    recipe = Recipe(**{**job.recipe, "encoder_weights": place.encoder_weights})
    sources = _sources(place.data, key_of(job), tuple(job.sources), BenchmarkKey(benchmark))
    train(
        sources.train, sources.held_out, benchmark, recipe, place.model(key_of(job)),
        fabric=make_fabric(recipe, place.device), provenance=sources.provenance,
    )  # fmt: skip


@lru_cache(1)
def _sources(data: Path, training: str, names: tuple[str, ...], benchmark: BenchmarkKey) -> Sources:
    """Decoded once for a model and the parts that are fitted to it, where one process does both."""
    return load_sources(find_sites(data, list(names)), benchmark.benchmark)


def _fit(job: Fitting, place: RunFolder) -> None:
    model = load(place.model(job.training), place.device)
    sources = _sources(
        place.data, job.training, tuple(model.card.sources), BenchmarkKey(model.card.benchmark)
    )
    seed = int(model.card.recipe.get("seed", 0))
    seed_all(seed)
    part = fit(job.part, FitSource(model, sources, seed), job.settings)
    with atomic_folder(place.part(key_of(job))) as folder:
        save_part(folder, job.part, part, model.card.sha256)


def tune_job(job: Tuning, place: RunFolder) -> dict[str, Any]:
    """The choice with every trial. Read are the model's own sources, the fifth it was not trained on."""
    model = open_model(job.training, job.fittings, place)
    card = model.card
    sites = find_sites(place.data, list(card.sources))
    images = [
        held_out_images(sites[name], card.benchmark, card.sources[name]["fingerprint"])
        for name in card.sources
    ]
    found = tune(model, job.method, images, Search(**job.search), job.configurations)
    return {"method": job.method, "sources": list(card.sources), "model": card.sha256, "search": dict(job.search),
            **search_record(found), "code": code_hash(), "versions": versions()}  # fmt: skip


def score_job(job: Scoring, place: RunFolder) -> tuple[dict[str, Any], list[Row]]:
    """The records of a scoring, and what is to be said of it."""
    start = time.perf_counter()
    opened = open_scoring(job, place)
    device = opened.device
    forget_peak(device)
    with counted_passes() as passes:
        rows, seconds = _score(opened)
    about = {
        "key": key_of(job),
        "job": to_dict(job),
        "model": opened.model.card.sha256,
        "options": dict(opened.options),
        "images": sum(len(cases) for cases in opened.orders.values()),
        "batches": sum(-(-len(cases) // job.batch) for cases in opened.orders.values()),
        "forwards": passes.forwards,
        "backwards": passes.backwards,
        "counts": dict(getattr(opened.adapter, "counts", {})),  # what a method says it did
        "adapting_seconds": seconds,
        "all_seconds": time.perf_counter() - start,
        "peak_bytes": peak_bytes(device),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "code": code_hash(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "dice": mean_dice(rows),
    }
    return about, rows


def _score(opened: OpenScoring) -> tuple[list[Row], float]:
    """Every answer scored, target by target; and the seconds the answers took."""
    job = opened.job
    rows: list[Row] = []
    seconds, scorer = 0.0, None
    for target, answer in opened.answers():
        if scorer is None or scorer.target != target:
            rows += scorer.finish() if scorer else []
            places = [(site.name, case.name) for site, case in opened.orders[target]]
            scorer = Scorer(target, places, opened.benchmark.regions, job.surfaces, job.instances)
        seconds += answer.seconds * len(answer.cases)
        rows += scorer.add(answer)
    return rows + (scorer.finish() if scorer else []), seconds


def mean_dice(rows: Sequence[Row]) -> dict[str, float]:
    """By target, over images and regions: what a running table shows without reading records."""
    by_target: dict[str, list[float]] = {}
    for target, _, _, _, metric, value in rows:
        if metric == "dice":
            by_target.setdefault(target, []).append(value)
    return {target: float(np.mean(values)) for target, values in by_target.items()}
