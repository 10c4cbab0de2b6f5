"""Save the evidence of learned sites of a benchmark run, to try other judges of a site without images or a GPU.

    ttdg bench experiments/learn-polyp.yaml --data DATA --encoder-weights resnet50.safetensors --out runs/learn-polyp
    python experiments/site_evidence.py runs/learn-polyp --out evidence [--hospitals 24] [--workers 8]
    python experiments/site_replay.py evidence

For every model and target of the rows of `universe` in the folder stream, the site is learned again. Saved are the
signals and the true Dice of the candidates of every image: not adapted, adapted, and their mean. For every model, the
same is saved for simulated hospitals of held-out source images. No image can be rebuilt from these numbers.
"""

import argparse
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ttdg.adaptation import build_adapter
from ttdg.adaptation.universe.fit import BATCH, SiteEvidence, simulated_hospitals, site_evidence
from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Scoring, Training
from ttdg.bench.run_file import read_run
from ttdg.bench.scoring_job import open_model, open_scoring
from ttdg.data import find_sites, load_sources, normalise


def model_name(job: Training) -> str:
    """Name of a source model in the file names."""
    return f"{job.benchmark['name']}-from-{'_'.join(job.sources)}-seed{job.recipe['seed']}"


def save_targets(job: Scoring, training: Training, folder: RunFolder, out: Path) -> str:
    """Learn each target of a scoring and save its evidence, unless it is saved already."""
    torch.set_num_threads(folder.threads)
    name = model_name(training)
    paths = {target.name: out / f"{name}.to.{target.name}.npz" for target in job.targets}
    if all(path.exists() for path in paths.values()):
        return f"{name}: saved already"
    opened = open_scoring(job, folder)
    learner: Any = opened.adapter
    for target in opened.targets:
        learner.reset()
        learner.learn(batch.images for batch in (target.learning or target.batches)())
        batches = ((batch.images, batch.masks.long()) for batch in target.batches())
        evidence = site_evidence(learner.evidence, batches, opened.benchmark)
        save(paths[target.name], [evidence], [case for _, case in target.images])
    return f"{name} to {', '.join(paths)}"


def save_hospitals(job: Scoring, training: Training, folder: RunFolder, out: Path, count: int) -> str:
    """Save the evidence of simulated hospitals of the sources of a model, unless it is saved already."""
    torch.set_num_threads(folder.threads)
    path = out / f"{model_name(training)}.simulated.npz"
    if path.exists():
        return path.name
    model = open_model(job.training, job.fittings, folder)
    benchmark, seed = model.card.benchmark, int(training.recipe["seed"])
    device = next(model.network.parameters()).device
    held_out = load_sources(find_sites(folder.data, list(model.card.sources)), benchmark).held_out

    def evidence() -> Iterator[SiteEvidence]:
        learner: Any = build_adapter(model, "universe", job.options)
        learner.folder_steps = model.parts["judge"].settings["learning"]["steps"]
        for images, labels in simulated_hospitals(held_out, count, seed + 1, device):
            batches = normalise(images, benchmark.normalisation).split(BATCH)
            learner.reset()
            learner.learn_always(batches)
            yield site_evidence(learner.evidence, zip(batches, labels.split(BATCH), strict=True), benchmark)

    save(path, list(evidence()), ())
    return path.name


def save(path: Path, evidence: Sequence[SiteEvidence], cases: Sequence[str]) -> None:
    """Write signals, Dice and the number of the hospital of every image as npz."""
    values = {name: torch.cat([e.signals[name] for e in evidence], 1) for name in evidence[0].signals}
    hospital = np.repeat(np.arange(len(evidence)), [len(e.dice) for e in evidence])
    arrays = {f"signal {name}": value.float().cpu().numpy() for name, value in values.items()}
    dice = torch.cat([e.dice for e in evidence]).float().cpu().numpy()
    np.savez_compressed(path, cases=np.array(cases), hospital=hospital, dice=dice, **arrays)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--row", default="universe", help="label of the row in the tables")
    parser.add_argument("--hospitals", type=int, default=24, help="simulated hospitals of each model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    run = read_run(options.run)
    folder = RunFolder(options.run, Path(run.data), Path(run.models), options.device, 1)
    rows = {entry.job: run.jobs[entry.job] for entry in run.entries if entry.label == options.row}
    jobs = [job for job in rows.values() if isinstance(job, Scoring) and job.stream == "folder"]
    models = {job.training: job for job in jobs}
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [
            pool.submit(save_targets, job, run.jobs[job.training], folder, options.out) for job in jobs
        ]
        waiting += [
            pool.submit(save_hospitals, job, run.jobs[key], folder, options.out, options.hospitals)
            for key, job in models.items()
        ]
        for done in waiting:
            print(done.result(), flush=True)


if __name__ == "__main__":
    main()
