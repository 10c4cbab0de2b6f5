"""The judge, the universe and every baseline on real transfers: from training to one row for each image.

    python experiments/universe_study.py --data $TTDG_DATA --weights resnet50.safetensors --out results/ [--seeds 0,1,2]

Trains leave-one-site-out (and, with --single STEPS, single-source) models with their morphology prior, fits the judge
on simulated shifts of held-out source images, and scores every method on every other site, in seeded order. Jobs are
processes on one GPU (MPS helps); a finished one is not done again. Writes one csv for each model, of which
`universe_table.py` makes tables, and the judge's evidence, on which `judge_replay.py` tries other judges.
"""

import argparse
import copy
import csv
import json
import multiprocessing
import random
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ttdg.adapt import METHODS, adapt
from ttdg.adapt.judge_fit import Table, evidence_table, gather, judge_part
from ttdg.adapt.mixing import fit_mixing
from ttdg.data import (
    Arrays,
    Benchmark,
    find_sites,
    load_benchmark,
    load_site,
    normalise,
    pack_path,
    pack_site,
)
from ttdg.errors import UserError
from ttdg.files import whole_file
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.parts import save_part
from ttdg.prior import MorphologyPrior
from ttdg.training import Model, Recipe, load, load_sources, make_fabric, train

CONTROLS: dict[str, tuple[str, dict[str, Any]]] = {
    "alpha-bn .25": ("alpha-bn", {"alpha": 0.25}),
    "flip averaging": ("judge", {"margin": 1.0}),  # the judge that never finds a gain
    "universe, random universe": ("universe", {"variant": "random-universe"}),
    "judge, no universe": ("judge", {"evidence": "no-universe"}),
    "universe-gradient, random universe": ("universe-gradient", {"variant": "random-universe"}),
    "universe-gradient, no universe": ("universe-gradient", {"variant": "no-universe"}),
    "universe-gradient, no consensus": ("universe-gradient", {"variant": "no-consensus"}),
}
ALONE = (
    "source",
    "norm",
    "alpha-bn",
    "tent",
    "judge",
    "universe",
    "universe, random universe",
)  # also at batch 1
COLUMNS = (
    "benchmark",
    "sources",
    "target",
    "seed",
    "batch",
    "method",
    "case",
    "region",
    "dice",
    "predicted",
    "half_width",
    "chosen",
)


@dataclass(frozen=True)
class Job:
    benchmark: str
    sources: tuple[str, ...]
    seed: int
    steps: int

    @property
    def name(self) -> str:
        return f"{self.benchmark}-from-{'_'.join(self.sources)}-seed{self.seed}"


def jobs(data: Path, benchmarks: list[str], seeds: list[int], steps: int, single: int) -> list[Job]:
    """Leave-one-out and single-source models, the long ones first."""
    found = []
    for name in benchmarks:
        sites = list(find_sites(data / name))
        for seed in seeds:
            found += [Job(name, tuple(s for s in sites if s != left), seed, steps) for left in sites]
            found += [Job(name, (site,), seed, single) for site in sites if single]
    return sorted(found, key=lambda job: (job.seed, -job.steps))


def run(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(2)
    clock, times = time.perf_counter(), {}
    benchmark = replace(load_benchmark(job.benchmark), size=options.size)
    sites = find_sites(options.data / job.benchmark)
    folder = options.work / job.name
    model = trained(job, folder, sites, benchmark, options)
    times["training"] = time.perf_counter() - clock
    rows: list[dict[str, Any]] = []
    for site in sites:
        if site not in job.sources:
            arrays = shuffled(load_site(sites[site], benchmark), options.images, job.seed)
            rows += score_target(model, job, site, arrays, benchmark, options, times)
    with whole_file(options.out / f"{job.name}.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return asdict(job) | {"validation": dict(model.card.validation), "seconds": times}


def trained(job: Job, folder: Path, sites: dict, benchmark: Benchmark, options: argparse.Namespace) -> Model:
    """The network with its prior, and the judge fitted to them."""
    sources = load_sources({name: sites[name] for name in job.sources}, benchmark)
    recipe = Recipe(
        options.encoder,
        options.weights,
        options.strides,
        job.steps,
        options.batch,
        "adamw",
        options.lr,
        seed=job.seed,
    )
    if not (folder / "model.json").exists():
        train(
            sources.train, sources.held_out, benchmark, recipe, folder,
            fabric=make_fabric(recipe, options.device), provenance=sources.provenance, every=job.steps,
        )  # fmt: skip
    model = load(folder, options.device)
    if "judge" not in model.parts:
        share = options.held_out // len(job.sources)
        held_out = {name: shuffled(arrays, share, 0) for name, arrays in sources.held_out.items()}
        prior = MorphologyPrior.from_part(model.parts["prior"]).to(options.device)
        network = copy.deepcopy(model.network)
        fit_mixing(
            network, list(sources.train.values()), benchmark, steps=options.mixing_steps, seed=job.seed
        )
        table = evidence_table(network, prior, held_out, benchmark, draws=options.draws, seed=job.seed)
        keep(options, f"{job.name}.source", table)
        save_part(
            folder,
            "judge",
            judge_part(table, network, prior, benchmark.regions, seed=job.seed),
            model.card.sha256,
        )
        for site in sites:
            if site not in job.sources:
                arrays = shuffled(load_site(sites[site], benchmark), options.images, job.seed)
                keep(options, f"{job.name}.to.{site}", gather(network, prior, arrays, benchmark, 4, None))
    return load(folder, options.device)


def keep(options: argparse.Namespace, name: str, table: Table) -> None:
    """Signals and Dice, so that other judges can be fitted and scored without the images: `judge_replay.py`."""
    values = {f"signal {key}": value for key, value in table.signals.items()}
    values |= {f"random {key}": value for key, value in table.random.items()} | {"dice": table.dice}
    (options.out / "evidence").mkdir(exist_ok=True)
    np.savez_compressed(
        options.out / "evidence" / name, **{k: v.half().cpu().numpy() for k, v in values.items()}
    )


def score_target(
    model: Model,
    job: Job,
    site: str,
    arrays: Arrays,
    benchmark: Benchmark,
    options: argparse.Namespace,
    times: dict,
) -> list[dict[str, Any]]:
    every = {name: (name, {}) for name in METHODS} | CONTROLS
    if options.methods != "all":
        every = {name: every[name] for name in options.methods.split(";")}
    rows = []
    for batch in (4, 1):
        for name, (method, settings) in every.items():
            if batch == 1 and name not in ALONE:
                continue
            try:
                adapter = adapt(model, method, **settings)
            except UserError:
                continue  # a part that was not fitted
            some = (
                arrays
                if batch > 1
                else Arrays(
                    arrays.images[: options.alone],
                    arrays.masks[: options.alone],
                    arrays.cases[: options.alone],
                )
            )
            clock = time.perf_counter()
            about = {
                "benchmark": job.benchmark,
                "sources": "+".join(job.sources),
                "target": site,
                "seed": job.seed,
            }
            rows += stream(
                adapter, some, benchmark, batch, about | {"batch": batch, "method": name}, options.device
            )
            times[f"{name}, batch {batch}"] = (time.perf_counter() - clock) / max(1, len(some.cases))
    return rows


def stream(
    adapter: Any, arrays: Arrays, benchmark: Benchmark, batch: int, about: dict, device: str
) -> list[dict]:
    """Online: the adapter keeps what it learns to the end of the site. The judge's own expectation is kept beside."""
    rows = []
    for at in range(0, len(arrays.cases), batch):
        images = normalise(arrays.images[at : at + batch].to(device).float() / 255, benchmark.normalisation)
        truth = region_masks(arrays.masks[at : at + batch].to(device).long(), benchmark.regions)
        scores = dice(region_probabilities(adapter(images), benchmark.regions), truth).cpu()
        verdict = getattr(adapter, "verdict", None)
        for i, case in enumerate(arrays.cases[at : at + batch]):
            extra = {}
            if verdict is not None:
                chosen = int(verdict.chosen[i])
                extra = {
                    "predicted": f"{float(verdict.prediction.dice[i, chosen]):.4f}",
                    "chosen": verdict.candidates[chosen],
                }
                extra["half_width"] = f"{float(verdict.prediction.half_width[i, chosen]):.4f}"
            for region, value in zip(benchmark.regions, scores[i], strict=True):
                rows.append(about | {"case": case, "region": region, "dice": f"{float(value):.4f}"} | extra)
    return rows


def shuffled(arrays: Arrays, count: int, seed: int) -> Arrays:
    order = list(range(len(arrays.cases)))
    random.Random(seed).shuffle(order)
    rows = order[: count or None]
    return Arrays(arrays.images[rows], arrays.masks[rows], tuple(arrays.cases[row] for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("work"))
    parser.add_argument("--weights", default=None)
    parser.add_argument("--strides", default="v1")
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--benchmarks", default="polyp,fundus")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--methods", default="all", help="separated by semicolons")
    parser.add_argument("--lr", type=float, default=3e-4)
    for name, value in {
        "steps": 1000, "single": 0, "batch": 16, "size": 256, "mixing-steps": 100, "held-out": 300, "draws": 3,
        "images": 120, "alone": 60, "workers": 4, "only": 0,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = options.benchmarks.split(",")
    for name in names:
        for site in find_sites(options.data / name).values():
            if not pack_path(site).exists():
                pack_site(site, replace(load_benchmark(name), size=options.size))
    todo = jobs(
        options.data, names, [int(s) for s in options.seeds.split(",")], options.steps, options.single
    )
    todo = [job for job in todo if not (options.out / f"{job.name}.json").exists()][: options.only or None]
    spawn, start = multiprocessing.get_context("spawn"), time.perf_counter()
    with ProcessPoolExecutor(options.workers, mp_context=spawn) as pool:
        waiting = {pool.submit(run, job, options): job for job in todo}
        for done in as_completed(waiting):
            job, passed = waiting[done], time.perf_counter() - start
            try:
                about = done.result()
            except Exception:  # noqa: BLE001  # one failed job must not stop the others
                print(f"{passed:5.0f} s  {job.name} failed\n{traceback.format_exc()}", flush=True)
                continue
            (options.out / f"{job.name}.json").write_text(json.dumps(about))
            print(
                f"{passed:5.0f} s  {job.name}  {about['validation']}  {about['seconds']['training']:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
