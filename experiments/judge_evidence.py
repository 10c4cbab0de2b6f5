"""Save the judge's evidence of every model of a benchmark run, to try other judges without images or a GPU.

    python experiments/judge_evidence.py runs/polyp --out evidence [--device cuda] [--workers 8]
    python experiments/judge_replay.py evidence

The evidence of a source model with a prior consists of the signals and Dice of all candidates: on held-out images of
its source sites, as they are and under simulated shifts, and on every other site in batches of 4, 1 and 16.
"""

import argparse
import copy
import multiprocessing
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

from ttdg.adaptation.judge.evidence import EvidenceTables, collect_evidence, evidence_setup
from ttdg.adaptation.judge.fit import evidence_tables
from ttdg.adaptation.judge.mixing import fit_mixing
from ttdg.bench.jobs import Training
from ttdg.bench.run_file import read_run
from ttdg.checkpoints import load
from ttdg.data import Arrays, find_sites, load_site, load_sources
from ttdg.prior import MorphologyPrior


def save_evidence(folder: Path, data: Path, options: argparse.Namespace) -> str:
    """Save the evidence of one model unless it is saved already; returns a line for the log."""
    torch.set_num_threads(1)
    model = load(folder, options.device)
    benchmark, seed = model.card.benchmark, int(model.card.recipe["seed"])
    name = f"{benchmark.name}-from-{'_'.join(model.card.sources)}-seed{seed}"
    if (options.out / f"{name}.source.npz").exists():
        return f"{name}: saved already"
    sites = find_sites(data)
    sources = load_sources({site: sites[site] for site in model.card.sources}, benchmark)
    share = options.held_out // len(model.card.sources)
    held_out = {site: shuffled(arrays, share, 0) for site, arrays in sources.held_out.items()}
    network = copy.deepcopy(model.network)
    mixing = fit_mixing(network, list(sources.train.values()), benchmark, seed=seed)
    prior = MorphologyPrior.from_part(model.parts["prior"]).to(options.device)
    setup = evidence_setup(network, mixing, prior, sources.train, benchmark, controls=True)
    for site in (site for site in sites if site not in model.card.sources):
        arrays = shuffled(load_site(sites[site], benchmark), options.images, seed)
        for group in (g for g in (4, 1, 16) if g <= len(arrays.cases)):
            usable = len(arrays.cases) // group * group
            save_tables(
                options.out / f"{name}.to.{site}.{group}.npz",
                collect_evidence(setup, arrays, group, None),
                arrays.cases[:usable],
            )
    save_tables(options.out / f"{name}.source.npz", evidence_tables(setup, held_out, seed=seed), ())
    return name


def save_tables(path: Path, tables: EvidenceTables, cases: Sequence[str]) -> None:
    """Write tables as npz, with keys "universe signal"."""
    values = {
        f"{universe} {key}": value.float().cpu().numpy()
        for universe, table in tables.items()
        for key, value in {**table.signals, "dice": table.dice, "hospital": table.hospital}.items()
    }
    np.savez_compressed(path, cases=np.array(cases), **values)


def shuffled(arrays: Arrays, count: int, seed: int) -> Arrays:
    """A random subset of `count` images."""
    assert arrays.masks is not None
    rows = list(range(len(arrays.cases)))
    random.Random(seed).shuffle(rows)
    rows = rows[:count]
    return Arrays(arrays.images[rows], arrays.masks[rows], tuple(arrays.cases[row] for row in rows))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--images", type=int, default=96, help="images of each target site")
    parser.add_argument("--held-out", type=int, default=240, help="held-out source images, over all sites")
    parser.add_argument("--seed", type=int, help="only models of this training seed")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    run = read_run(options.run)
    keys = [
        key
        for key, job in run.jobs.items()
        if isinstance(job, Training) and options.seed in (None, job.recipe["seed"])
    ]
    folders = [
        Path(run.models) / key for key in keys if (Path(run.models) / key / "prior.safetensors").exists()
    ]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=spawn) as pool:
        for done in [pool.submit(save_evidence, folder, Path(run.data), options) for folder in folders]:
            print(done.result(), flush=True)


if __name__ == "__main__":
    main()
