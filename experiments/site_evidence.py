"""Save the evidence of learned sites of a benchmark run, to try judges and answers without images or a GPU.

    ttdg bench experiments/learn-polyp.yaml --data DATA --encoder-weights resnet50.safetensors --out runs/learn-polyp
    python experiments/site_evidence.py runs/learn-polyp --out evidence [--hospitals 24] [--workers 8]
    python experiments/site_replay.py evidence

For every model and target of the rows of `universe` in the folder stream, the site is learned again. Saved are the
signals and the true Dice of the candidates of every image: not adapted, adapted, and their mean. For every model, the
same is saved for simulated hospitals of held-out source images. No image can be rebuilt from these numbers.

With `--maps SIZE`, predictions are saved too, as small maps (`experiments/candidate_maps.py`), which
`experiments/answer_replay.py` reads. They hold the true masks, so they must not be published.
"""

import argparse
import multiprocessing
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from candidate_maps import CandidateMaps
from torch import Tensor

from ttdg.adaptation import build_adapter
from ttdg.adaptation.universe.fit import BATCH, SiteEvidence, simulated_hospitals, site_evidence
from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Scoring, Training
from ttdg.bench.run_file import read_run
from ttdg.bench.scoring_job import open_model, open_scoring
from ttdg.checkpoints import Model
from ttdg.data import find_sites, load_sources, normalise
from ttdg.files import atomic_file


class LearnedSite(NamedTuple):
    """What is saved of a site."""

    evidence: SiteEvidence
    maps: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Collection:
    """What is saved, and where.

    Attributes:
        folder: the benchmark run.
        out: folder of the evidence.
        hospitals: number of simulated hospitals of each model.
        maps: side of the saved maps in pixels; 0 saves none.
    """

    folder: RunFolder
    out: Path
    hospitals: int
    maps: int

    def path(self, label: str, training: Training, site: str) -> Path:
        """File of a learned site; rows other than `universe` have a folder of their own."""
        row = label.removeprefix("universe").removeprefix(", ").replace(" ", "-")
        model = (
            f"{training.benchmark['name']}-from-{'_'.join(training.sources)}-seed{training.recipe['seed']}"
        )
        (self.out / row).mkdir(parents=True, exist_ok=True)
        return self.out / row / f"{model}.{site}.npz"

    def learned(self, learner: Any, model: Model, batches: Iterable[tuple[Tensor, Tensor]]) -> LearnedSite:
        """Evidence of a site that `learner` has learned, and its maps."""
        maps = CandidateMaps(model, learner, self.maps)
        evidence = site_evidence(maps.candidates, maps.watch(batches), model.card.benchmark)
        return LearnedSite(evidence, maps.arrays())

    def targets(self, label: str, job: Scoring, training: Training) -> str:
        """Learn each target of a scoring and save its evidence, unless it is saved already."""
        torch.set_num_threads(self.folder.threads)
        paths = {target.name: self.path(label, training, f"to.{target.name}") for target in job.targets}
        if all(path.exists() for path in paths.values()):
            return f"{label}: saved already"
        opened = open_scoring(job, self.folder)
        learner: Any = opened.adapter
        for target in opened.targets:
            learner.reset()
            learner.learn(batch.images for batch in (target.learning or target.batches)())
            batches = (
                (batch.images, batch.masks.long()) for batch in target.batches() if batch.masks is not None
            )
            found = self.learned(learner, opened.model, batches)
            save(paths[target.name], [found], [case for _, case in target.images])
        return ", ".join(path.name for path in paths.values())

    def simulated(self, label: str, job: Scoring, training: Training) -> str:
        """Save the evidence of simulated hospitals of the sources of a model, unless it is saved already."""
        torch.set_num_threads(self.folder.threads)
        path = self.path(label, training, "simulated")
        if path.exists() or not self.hospitals:
            return path.name
        model = open_model(job.training, job.fittings, self.folder)
        benchmark, seed = model.card.benchmark, int(training.recipe["seed"])
        device = next(model.network.parameters()).device
        held_out = load_sources(find_sites(self.folder.data, list(model.card.sources)), benchmark).held_out
        learner: Any = build_adapter(model, "universe", job.options)
        learner.folder_steps = model.parts["judge"].settings["learning"]["steps"]
        found = []
        for images, labels in simulated_hospitals(held_out, self.hospitals, seed + 1, device):
            batches = normalise(images, benchmark.normalisation).split(BATCH)
            learner.reset()
            learner.learn_always(batches)
            found.append(self.learned(learner, model, zip(batches, labels.split(BATCH), strict=True)))
        save(path, found, ())
        return path.name


def save(path: Path, found: Sequence[LearnedSite], cases: Sequence[str]) -> None:
    """Write signals, Dice, the number of the hospital of every image and the maps as npz."""
    joined = SiteEvidence.joined([site.evidence for site in found])
    arrays: dict[str, Any] = {
        "cases": np.array(cases),
        "hospital": np.repeat(np.arange(len(found)), [len(site.evidence.dice) for site in found]),
        "dice": joined.dice.float().cpu().numpy(),
        **{f"signal {name}": value.float().cpu().numpy() for name, value in joined.signals.items()},
        **{f"map {name}": np.concatenate([site.maps[name] for site in found]) for name in found[0].maps},
    }
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--row", action="append", help="label of a row in the tables; default universe")
    parser.add_argument("--only", action="append", help="only this experiment; may be repeated")
    parser.add_argument("--target", action="append", help="only this site; may be repeated")
    parser.add_argument("--seed", type=int, help="only this training seed")
    parser.add_argument("--hospitals", type=int, default=24, help="simulated hospitals of each model")
    parser.add_argument("--maps", type=int, default=0, metavar="SIZE", help="side of the saved maps")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    run = read_run(options.run)
    folder = RunFolder(options.run, Path(run.data), Path(run.models), options.device, 1)
    collection = Collection(folder, options.out, options.hospitals, options.maps)
    rows = options.row or ["universe"]
    entries = [entry for entry in run.entries if not options.only or entry.experiment in options.only]
    jobs: dict[tuple[str, str], tuple[str, Scoring, Training]] = {}
    for entry in sorted((e for e in entries if e.label in rows), key=lambda e: rows.index(e.label)):
        job = run.jobs[entry.job]
        training = run.jobs[job.training] if isinstance(job, Scoring) else None
        if not (isinstance(job, Scoring) and isinstance(training, Training) and job.stream == "folder"):
            continue
        named = not options.target or {target.name for target in job.targets} <= set(options.target)
        trained = folder.model(job.training).exists()
        if named and trained and options.seed in (None, training.recipe["seed"]):
            jobs[entry.label, entry.job] = entry.label, job, training
    models = {(label, job.training): (label, job, training) for label, job, training in jobs.values()}
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(collection.targets, *job) for job in jobs.values()]
        waiting += [pool.submit(collection.simulated, *job) for job in models.values()]
        for done in waiting:
            print(done.result(), flush=True)


if __name__ == "__main__":
    main()
