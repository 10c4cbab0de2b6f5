"""Doing a job: train a source model, fit a part, or score a method. Each leaves one result, whole or nothing."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from ttdg.data import Benchmark, find_sites
from ttdg.experiment.fitting import Source, fit
from ttdg.experiment.jobs import Fitting, Job, Scoring, Training, key_of, to_dict
from ttdg.experiment.measure import code_hash, counted_passes, forget_peak, peak_bytes
from ttdg.experiment.opened import Opened, open_job, seed_all
from ttdg.experiment.place import Place, alone
from ttdg.experiment.rowfile import Row, write_rows
from ttdg.experiment.scorer import Scorer
from ttdg.files import whole_folder
from ttdg.parts import save_part
from ttdg.training import Recipe, load, load_sources, make_fabric, train
from ttdg.training.checkpoint import versions


def work(job: Job, place: Place) -> None:
    """Do the job unless it is done. Two workers on the same job: the second waits, then finds it done."""
    with alone(place.claim(job)):
        if place.done(job):
            return
        torch.set_num_threads(place.threads)
        if isinstance(job, Training):
            _train(job, place)
        elif isinstance(job, Fitting):
            _fit(job, place)
        else:
            about, rows = score_job(job, place)
            write_rows(place.record(key_of(job)), about, rows)


def _train(job: Training, place: Place) -> None:
    benchmark = Benchmark.from_dict(job.benchmark)
    recipe = Recipe(**{**job.recipe, "encoder_weights": place.encoder_weights})
    sources = load_sources(find_sites(place.data, list(job.sources)), benchmark)
    train(
        sources.train, sources.held_out, benchmark, recipe, place.model(key_of(job)),
        fabric=make_fabric(recipe, place.device), provenance=sources.provenance,
    )  # fmt: skip


def _fit(job: Fitting, place: Place) -> None:
    model = load(place.model(job.training), place.device)
    sites = find_sites(place.data, list(model.card.sources))
    seed = int(model.card.recipe.get("seed", 0))
    seed_all(seed)
    source = Source(model, load_sources(sites, model.card.benchmark), seed)
    part = fit(job.part, source, job.settings)
    with whole_folder(place.part(key_of(job))) as folder:
        save_part(folder, job.part, part, model.card.sha256)


def score_job(job: Scoring, place: Place) -> tuple[dict[str, Any], list[Row]]:
    """The records of a scoring, and what is to be said of it."""
    start = time.perf_counter()
    opened = open_job(job, place)
    device = opened.device
    forget_peak(device)
    with counted_passes() as passes:
        rows, seconds = _score(opened)
    about = {
        "key": key_of(job),
        "job": to_dict(job),
        "model": opened.model.card.sha256,
        "images": sum(len(cases) for cases in opened.orders.values()),
        "batches": sum(-(-len(cases) // job.batch) for cases in opened.orders.values()),
        "forwards": passes.forwards,
        "backwards": passes.backwards,
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


def _score(opened: Opened) -> tuple[list[Row], float]:
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
