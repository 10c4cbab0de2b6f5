"""Leave-one-site-out on real benchmarks: train on all sites but one, score every method on the one left out.

    python experiments/leave_one_out.py --data $TTDG_DATA --weights resnet50.safetensors --out results/ \\
        [--benchmarks polyp,fundus] [--seeds 0,1,2] [--workers 6]

A pilot trains the recipes of PILOT on two splits and chooses by Dice on held-out *source* images; the chosen one is
then trained on every split and seed, and each target site is scored online at batch 4, its images in seeded order.
Jobs are independent processes on one GPU; a finished job is not done again. Writes
`pilot.csv`, `summary.csv` (one row per target, seed, method, region), `models.csv` and `summary.md`.
"""

import argparse
import csv
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

METHODS = {
    "source": ("source", {}),
    "norm": ("norm", {}),
    "alpha-bn": ("alpha-bn", {"alpha": 0.1}),
    "tent": ("tent", {}),
}
PILOT = {
    "sgd 1e-3, ce": {"optimiser": "sgd", "lr": 1e-3, "loss": "ce"},
    "sgd 1e-3, dice+ce": {"optimiser": "sgd", "lr": 1e-3, "loss": "dice+ce"},
    "sgd 1e-2, dice+ce": {"optimiser": "sgd", "lr": 1e-2, "loss": "dice+ce"},
    "adamw 3e-4, ce": {"optimiser": "adamw", "lr": 3e-4, "loss": "ce"},
    "adamw 3e-4, dice+ce": {"optimiser": "adamw", "lr": 3e-4, "loss": "dice+ce"},
}
RECIPES = PILOT | {
    "adamw 3e-3, dice+ce": {"optimiser": "adamw", "lr": 3e-3, "loss": "dice+ce"}
}  # for light networks
BATCH = 4


@dataclass(frozen=True)
class Job:
    """One split: a benchmark, the site left out, a recipe; a pure function of these."""

    benchmark: str
    target: str
    recipe: tuple[tuple[str, object], ...]
    name: str
    evaluate: bool

    @property
    def folder(self) -> str:
        seed = dict(self.recipe)["seed"]
        return f"{self.benchmark}-without-{self.target}-seed{seed}-{self.name}".replace(" ", "").replace(
            ",", "_"
        )


def run(job: Job, data: Path, work: Path, device: str) -> tuple[Job, list[dict], dict]:
    """Train and score one job; what an earlier run left in `work` is used, not made again."""
    done = work / f"{job.folder}-records"
    if not (done / "info.json").exists():
        info = train_and_score(job, data, work, done, device)
        (done / "info.json").write_text(json.dumps(info))
    info = json.loads((done / "info.json").read_text())
    return job, [row for label in METHODS if job.evaluate for row in summary(info, label, done)], info


def train_and_score(job: Job, data: Path, work: Path, done: Path, device: str) -> dict:
    import torch

    from ttdg.data import find_sites, load_benchmark
    from ttdg.experiment.evaluate import Setting
    from ttdg.experiment.records import write
    from ttdg.experiment.site import evaluate_site
    from ttdg.training import Recipe, load, load_sources, make_fabric, train

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 4))
    start = time.perf_counter()
    benchmark, sites = load_benchmark(job.benchmark), find_sites(data / job.benchmark)
    recipe, out = Recipe(**dict(job.recipe)), work / job.folder
    if not (out / "model.json").exists():
        sources = load_sources({n: s for n, s in sites.items() if n != job.target}, benchmark, workers=4)
        train(
            sources.train, sources.held_out, benchmark, recipe, out,
            fabric=make_fabric(recipe, device), provenance=sources.provenance, every=recipe.steps,
        )  # fmt: skip
        del sources
    trained, model = time.perf_counter() - start, load(out, device)
    done.mkdir(parents=True, exist_ok=True)
    for label, (method, options) in METHODS.items() if job.evaluate else ():
        setting = Setting(job.target, method, "online", BATCH, recipe.seed)
        records = evaluate_site(
            model, sites[job.target], benchmark, setting, options=options, shuffle=recipe.seed, workers=4
        )
        write(done / label, records)
    info = {"benchmark": job.benchmark, "target": job.target, "seed": recipe.seed, "recipe": job.name}
    info |= {f"source validation {region}": value for region, value in model.card.validation.items()}
    return info | {"training seconds": trained, "all seconds": time.perf_counter() - start}


def summary(info: dict, label: str, done: Path) -> list[dict]:
    """One row a region, from the records."""
    from ttdg.experiment.records import read

    records, rows = read(done / label), []
    for region in records.values("region"):
        part = records.where(region=region)
        scores = {
            "dice": part.mean("dice"),
            "alignment": part.max_alignment(),
            "structure": part.mean("structure"),
        }
        keep = {name: info[name] for name in ("benchmark", "target", "seed")}
        row = keep | {"method": label, "region": region, "images": len(part.rows)}
        row |= {name: 100 * value for name, value in scores.items()}
        rows.append(row | {"missed": sum(record.dice == 0 for record in part.rows)})
    return rows


def run_all(jobs, data, work, device, workers, out, name):
    rows, infos = [], []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = [pool.submit(run, job, data, work, device) for job in jobs]
        for done in as_completed(futures):
            job, part, info = done.result()
            rows += part
            infos.append(info)
            dice = {row["method"]: 0.0 for row in part}
            for row in part:
                dice[row["method"]] += row["dice"] / sum(r["method"] == row["method"] for r in part)
            scores = {k: round(v, 1) for k, v in dice.items()}
            held = {k[18:]: round(100 * v, 1) for k, v in info.items() if k.startswith("source validation")}
            print(
                f"{job.folder}: {info['all seconds']:.0f} s, source validation {held}, target {scores}",
                flush=True,
            )
            write_csv(out / f"{name}-models.csv", infos)
            write_csv(out / f"{name}.csv", rows)
    return rows, infos


def write_csv(path: Path, rows: list[dict]) -> None:
    if not rows:
        return
    names = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            [{k: f"{v:.4f}" if isinstance(v, float) else v for k, v in row.items()} for row in rows]
        )


def choose(infos: list[dict]) -> str:
    """The recipe with the best mean Dice on held-out source images over the pilot's splits."""
    means: dict[str, list[float]] = {}
    for info in infos:
        values = [value for key, value in info.items() if key.startswith("source validation")]
        means.setdefault(info["recipe"], []).append(sum(values) / len(values))
    return max(means, key=lambda name: sum(means[name]) / len(means[name]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for models and per-image records")
    parser.add_argument("--benchmarks", default="polyp,fundus")
    parser.add_argument("--pilot", default="polyp:etis,fundus:drishti")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--recipe", choices=list(RECIPES), help="skip the pilot")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    from ttdg.data import find_sites

    def recipe(name: str, seed: int) -> tuple[tuple[str, object], ...]:
        weights = {"encoder_weights": str(options.weights), "strides": "v1"} if options.weights else {}
        shared = {"encoder": options.encoder, "steps": options.steps, "batch": options.batch, "seed": seed}
        return tuple((RECIPES[name] | weights | shared).items())

    chosen = options.recipe
    if chosen is None:
        splits = [pair.split(":") for pair in options.pilot.split(",")]
        pilot = [Job(b, target, recipe(name, 0), name, False) for b, target in splits for name in PILOT]
        _, infos = run_all(
            pilot, options.data, options.work, options.device, options.workers, options.out, "pilot"
        )
        chosen = choose(infos)
        print(f"chosen on held-out source images: {chosen}", flush=True)
    jobs = [
        Job(benchmark, target, recipe(chosen, int(seed)), chosen, True)
        for seed in options.seeds.split(",")
        for benchmark in options.benchmarks.split(",")
        for target in find_sites(options.data / benchmark)
    ]
    run_all(jobs, options.data, options.work, options.device, options.workers, options.out, "summary")


if __name__ == "__main__":
    main()
