"""Measurements around a method: fitting its parts, a whole site from files to records, and source training."""

import time
from dataclasses import replace
from pathlib import Path

import psutil

from ttdg.adaptation import METHODS, adapt
from ttdg.adaptation.judge.fit import fit_judge
from ttdg.checkpoints import Model
from ttdg.data import Arrays, Benchmark, find_sites, load_sources, stream
from ttdg.evaluation.records import write_rows
from ttdg.evaluation.site import Setting, evaluate_site
from ttdg.metrics import score
from ttdg.networks import Segmenter, cuda_graph, level_channels
from ttdg.prior import MorphologyPrior, prior_for
from ttdg.training import Recipe, make_fabric, train
from ttdg.training.parts import fit_part
from ttdg.types import Part


def made_parts(network: Segmenter, benchmark: Benchmark, arrays: Arrays, names: list[str]) -> dict[str, Part]:
    """Fit the parts of these methods with very few steps, because speed does not depend on their quality."""
    wanted = {part for name in names for part in METHODS[name].parts}
    site, device = {"a": arrays}, next(network.parameters()).device
    parts = {}
    if wanted & {"prior", "judge"}:
        parts["prior"] = prior_for(level_channels(network), len(benchmark.labels)).to_part()
    if "judge" in wanted:
        prior = MorphologyPrior.from_part(parts["prior"]).to(device)
        parts["judge"] = fit_judge(
            network, prior, site, site, benchmark, draws=1, mixing_steps=1, controls=True
        )
    for name in wanted - parts.keys():
        parts[name] = fit_part(name, network, site, benchmark, device, steps=1)
    return parts


def reading_and_scoring(model: Model, folder: Path, repeats: int) -> dict[str, float]:
    """Return the seconds per image of reading, of `source` and of scoring, on one site."""
    device = next(model.network.parameters()).device
    benchmark, sites = model.card.benchmark, find_sites(folder)
    cases = next(iter(sites.values())).cases
    adapter, spent = adapt(model.network, "source"), {"reading": 0.0, "source": 0.0, "scoring": 0.0}
    for _ in range(max(1, repeats // 3)):
        clock = time.perf_counter()
        for loaded in stream(cases, benchmark, 4, device=device):
            spent["reading"] += time.perf_counter() - clock
            for name, work in (("source", lambda b=loaded.batch: adapter(b.images)), ("scoring", None)):
                clock = time.perf_counter()
                if work is not None:
                    logits = work()
                else:
                    score(logits, loaded.batch.masks, benchmark.regions)
                spent[name] += time.perf_counter() - clock
            clock = time.perf_counter()
    return {name: value / len(cases) / max(1, repeats // 3) for name, value in spent.items()}


def whole_site(model: Model, folder: Path, method: str) -> float:
    """Return the images per second of reading, adapting, scoring and recording a site, measured on the second pass."""
    site = next(iter(find_sites(folder).values()))
    for _ in range(2):
        start = time.perf_counter()
        result = evaluate_site(model, site, model.card.benchmark, Setting(site.name, method, "online", 4))
        write_rows(folder.parent / "records" / "whole.csv.gz", result.about, result.rows)
        spent = time.perf_counter() - start
    return len(site.cases) / spent


def training_speed(folder: Path, benchmark: Benchmark, recipe: Recipe, device: str) -> float:
    """Return the images per second of source training after its start, from the times of its progress events."""
    sources = load_sources(find_sites(folder), benchmark)
    events: list[tuple[int, float]] = []
    train(
        sources.train, {}, benchmark, recipe,
        folder.parent / f"model-{recipe.batch}-{recipe.universe}-{cuda_graph.enabled()}",
        fabric=make_fabric(recipe, device), provenance=sources.provenance, every=recipe.steps,
        on_progress=lambda event: events.append((event.step, time.perf_counter())),
    )  # fmt: skip
    (first, start), (last, end) = events[1], events[-2]
    return (last - first) * recipe.batch / (end - start)


def resident_growth(model: Model, folder: Path) -> float:
    """Return the MB of resident memory that a second pass, four times as long, adds."""
    site = next(iter(find_sites(folder).values()))
    longer = replace(site, cases=site.cases * 4)
    setting = Setting(site.name, "source", "online", 4)
    evaluate_site(model, site, model.card.benchmark, setting)
    before = psutil.Process().memory_info().rss
    evaluate_site(model, longer, model.card.benchmark, setting)
    return (psutil.Process().memory_info().rss - before) / 2**20
