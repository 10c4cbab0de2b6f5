"""Kill training, fits, a benchmark and predictions at random points, and compare their ends with undisturbed runs.

    python benchmarks/kill.py --kills 50 --seed 0
    python benchmarks/kill.py --kills 50 --seed 0 --tasks predict

Drawn discs, an untrained small network. A run is a forked process; it gets SIGKILL after a random share of the time of
an undisturbed run, is started again, and is killed up to three times before it may end. The jobs of a benchmark run
inside the killed process. Compared are

- train: the bytes of the weights and of the card;
- fit-judge: the tensors and settings of the part, and whether its finished rounds were swept;
- bench: the bytes of all weights, and every value of every record but the times;
- predict: the bytes of all masks, overlays and of `manifest.csv`, in both streams of a method that learns. The audit
  log must verify, after every kill and at the end.
"""

import argparse
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fuzz_world import QUICK, draw_discs, save_model

MOST = 3  # kills of one run


class Inline:
    """An executor in this very process."""

    slots = 1

    def __init__(self, place: Any) -> None:
        self.place, self.queue = place, []

    def submit(self, key: str, spec: dict[str, Any]) -> None:
        self.queue.append((key, spec))

    def wait(self, seconds: float) -> list[Any]:
        from ttdg.bench.worker import run_job

        return [run_job(*self.queue.pop(0), self.place)]

    def close(self) -> None:
        self.queue.clear()


class Train:
    """Ten steps, with a saved state after each."""

    def __init__(self, discs: Path, folder: Path) -> None:
        from ttdg.data import find_sites, load_benchmark, load_sources

        self.benchmark = load_benchmark(None, discs)
        self.sources = load_sources(find_sites(discs, ["east", "south"]), self.benchmark)

    def run(self, out: Path, number: int) -> None:
        from ttdg.training import Recipe, make_fabric, train

        recipe = Recipe(encoder="light", steps=10, batch=4, optimiser="adamw", average=0.9)
        train(
            self.sources.train, self.sources.held_out, self.benchmark, recipe, out / "model",
            fabric=make_fabric(recipe, "cpu"), provenance=self.sources.provenance, seconds=0.0,
        )  # fmt: skip

    def end(self, out: Path) -> dict[str, Any]:
        return files(out, "model/*")

    def check(self, out: Path) -> list[str]:
        return []


class FitJudge:
    """Two rounds and four simulated hospitals, in groups of images of two sites."""

    def __init__(self, discs: Path, folder: Path) -> None:
        from ttdg.checkpoints import save_part
        from ttdg.data import find_sites, load_benchmark, load_sources
        from ttdg.training.prior_fit import fit_prior

        self.discs, self.model = discs, folder / "model"
        sources = load_sources(find_sites(discs, ["east", "south"]), load_benchmark(None, discs))
        model = save_model(discs, self.model, 0, sources.provenance)
        prior = fit_prior(model.network, sources.train, model.card.benchmark, steps=2)
        save_part(self.model, "prior", prior.to_part(), model.card.sha256)

    def run(self, out: Path, number: int) -> None:
        from ttdg.cli import app
        from ttdg.files import atomic_folder

        if not (out / "model").exists():
            with atomic_folder(out / "model") as place:
                shutil.copytree(self.model, place, dirs_exist_ok=True)
        words = (
            f"--draws 1 --mixing-steps 4 --hospitals 4 --learning-steps 4 --learning-draw 4 --seed {number}"
        )
        app(
            [
                "fit-judge",
                str(out / "model"),
                "-d",
                str(self.discs),
                "--again",
                "--device",
                "cpu",
                *words.split(),
            ]
        )

    def end(self, out: Path) -> dict[str, Any]:
        return files(out, "model/*") | files(out, "model/judge.partial/*/*")

    def check(self, out: Path) -> list[str]:
        return []


class Bench:
    """Three models and nine scorings."""

    def __init__(self, discs: Path, folder: Path) -> None:
        from ttdg.bench.config import parse_config
        from ttdg.bench.plan import plan_jobs
        from ttdg.data import find_sites, load_benchmark, summarise_data

        self.discs = discs
        recipe = {"encoder": "light", "steps": 2, "batch": 2, "universe": 0.0}
        main = {"name": "main", "protocol": "leave-one-out", "methods": ["source", "norm", "tent"]}
        self.config = parse_config({"name": "t", "recipe": recipe, "experiments": [main]}, "t.yaml")
        self.plan = plan_jobs(self.config, summarise_data(load_benchmark(None, discs), find_sites(discs)))

    def run(self, out: Path, number: int) -> None:
        from ttdg.bench.folder import RunFolder
        from ttdg.bench.run import run_jobs
        from ttdg.bench.run_file import RunPlan, write_run

        config, plan, place = self.config, self.plan, RunFolder(out, self.discs, out / "models")
        write_run(
            out,
            RunPlan(config.name, config.baseline, config.harm, config.model_dump(), plan.jobs, plan.entries),
        )
        ended = run_jobs(dict(plan.jobs), place, lambda: Inline(place))
        assert not ended.failed, ended.failed

    def end(self, out: Path) -> dict[str, Any]:
        from ttdg.evaluation.records import read_rows

        records = {
            path.name: str([row for row in read_rows(path) if row[4] != "seconds"])
            for path in out.glob("records/*.gz")
        }
        return records | files(out, "models/*/*.safetensors")

    def check(self, out: Path) -> list[str]:
        return []


class Predict:
    """Self-training over a site of eight images in batches of two; even runs learn the folder first."""

    def __init__(self, discs: Path, folder: Path) -> None:
        self.model, self.images = save_model(discs, folder / "model", 0), discs / "west" / "images"

    def run(self, out: Path, number: int) -> None:
        from ttdg.newsite import predict, run_state

        run_state.SECONDS = 0.0
        stream = "online" if number % 2 else "folder"
        predict(
            self.model, self.images, out, method="self-training", options=QUICK, stream=stream, batch=2, workers=1
        )  # fmt: skip

    def end(self, out: Path) -> dict[str, Any]:
        return files(out, "masks/*") | files(out, "overlays/*") | files(out, "manifest.csv")

    def check(self, out: Path) -> list[str]:
        from ttdg.newsite.audit import verify_audit

        return verify_audit(out).problems if (out / "audit.jsonl").exists() else []


TASKS = {"train": Train, "fit-judge": FitJudge, "bench": Bench, "predict": Predict}


def files(out: Path, pattern: str) -> dict[str, Any]:
    """Return the content of files, unfinished ones (whose names begin with a dot) included."""
    return {str(path.relative_to(out)): content(path) for path in sorted(out.glob(pattern)) if path.is_file()}


def content(path: Path) -> Any:
    """Return the bytes of a file; of safetensors its header, whose order differs between processes, and its tensors."""
    data = path.read_bytes()
    if path.suffix != ".safetensors":
        return data
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def start(run: Callable[[Path, int], None], out: Path, number: int) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=run, args=(out, number))
    process.start()
    return process


def campaign(name: str, kills: int, seed: int, discs: Path, folder: Path) -> Counter[str]:
    """Kill runs of a task until `kills` processes have died; return the counts."""
    task, rng, counts = TASKS[name](discs, folder), random.Random(f"{name} {seed}"), Counter[str]()
    whole, seconds = {}, {}
    for number in (0, 1):
        began = time.monotonic()
        start(task.run, folder / f"whole-{number}", number).join()
        seconds[number] = time.monotonic() - began
        whole[number] = task.end(folder / f"whole-{number}")
        assert whole[number], "the undisturbed run wrote nothing"
    while counts["kills"] < kills:
        number, mine = counts["runs"] % 2, 0
        out = folder / f"run-{counts['runs']}"
        while True:
            process = start(task.run, out, number)
            process.join(rng.uniform(0, 1.1) * seconds[number] if mine < MOST else None)
            if process.exitcode is not None:
                break
            process.kill()
            process.join()
            mine += 1
            counts["kills"] += 1
            counts["broken logs"] += bool(task.check(out))
        counts["runs"] += 1
        counts["failed"] += process.exitcode != 0
        counts["different ends"] += task.end(out) != whole[number]
        counts["broken logs"] += bool(task.check(out))
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="number of kills of each task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    for name in options.tasks:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            discs = draw_discs(folder / "discs", options.seed, 8)
            counts, began = Counter[str](), time.monotonic()
            counts = campaign(name, options.kills, options.seed, discs, folder)
        found = ", ".join(
            f"{counts[key]} {key}" for key in ("kills", "runs", "failed", "different ends", "broken logs")
        )
        print(f"{name}, seed {options.seed}: {found}; {time.monotonic() - began:.0f} s", flush=True)
        wrong += counts["failed"] + counts["different ends"] + counts["broken logs"]
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
