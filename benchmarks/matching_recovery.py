"""Recall against noise on planted problems, ours and peers: a table, and the figure in docs/figures.

    python benchmarks/matching_recovery.py [--seeds 3] [--pylibmgm] [--keep-peers]

The numbers are stored as JSON beside the figure. With --keep-peers only our own are measured again, on the same ones.
pygmtools' `gamgm` runs under twelve schedules at every point and is drawn at the best of them in hindsight.
pylibmgm (GPL) runs as a separate program, if it is installed and asked for; it is slow from Python.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from matching_peers import gamgm_schedules
from matching_planted import Planted, plant, recall
from ttdg.matching import match

Point = dict[str, float]
PANELS: dict[str, tuple[dict[str, float], str, tuple[float, ...]]] = {
    "node noise (n = d)": ({}, "node_noise", (0.0, 0.5, 1.0, 1.5, 2.0)),
    "node noise (n < d)": ({"n": 16}, "node_noise", (0.0, 0.5, 1.0, 1.5, 2.0)),
    "edge noise (n = d)": ({"node_noise": 1.25}, "edge_noise", (0.0, 0.1, 0.2, 0.3, 0.4)),
    "edge noise (n < d)": ({"n": 16, "node_noise": 1.0}, "edge_noise", (0.0, 0.1, 0.2, 0.3, 0.4)),
    "outliers (n = 16)": ({"n": 16, "node_noise": 1.0, "d": 20}, "outliers", (0, 1, 2, 4, 6)),
    "graphs m (n < d)": ({"n": 16, "node_noise": 1.0}, "m", (2, 4, 8, 12, 16)),
}


def ours(method: str, d: int, planted: Planted) -> Tensor:
    """Matches found by `match`."""
    return match(planted.graphs, universe_size=d, method=method).pairs


def pylibmgm(planted: Planted) -> Tensor:
    """Matches found by pylibmgm, in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        problem, answer = Path(folder, "problem.npz"), Path(folder, "pairs.npy")
        np.savez(problem, edges=planted.graphs.edges.numpy(), affinity=planted.affinity.numpy())
        subprocess.run(
            [sys.executable, Path(__file__).with_name("matching_pylibmgm.py"), problem, answer], check=True
        )
        return torch.from_numpy(np.load(answer))


def scores(run: Callable[[Planted], Tensor], instances: list[Planted]) -> float:
    """Mean recall over the instances."""
    return statistics.mean(recall(run(planted), planted) for planted in instances)


def measure(
    seeds: int, peers: Callable[[list[Planted], int], Point], earlier: dict[str, dict[str, Point]]
) -> dict[str, dict[str, Point]]:
    """Recall of every method at every point of every panel; peers are taken from `earlier` if given."""
    results: dict[str, dict[str, Point]] = {}
    for panel, (fixed, varied, values) in PANELS.items():
        results[panel] = {}
        for value in values:
            options = {"m": 8, "n": 20, "d": 20, "edge_noise": 0.1, "node_noise": 1.0, **fixed, varied: value}
            d = int(options["d"]) + (int(value) if varied == "outliers" else 0)
            instances = [plant(seed, **options) for seed in range(seeds)]  # type: ignore[arg-type]
            found = earlier[panel][str(value)] if earlier else peers(instances, d)
            found |= {
                name: scores(partial(ours, name, d), instances) for name in ("ga", "spectral", "pairwise")
            }
            results[panel][str(value)] = found
            print(panel, value, {k: round(v, 3) for k, v in found.items()}, flush=True)
    return results


def peer_scores(with_pylibmgm: bool, instances: list[Planted], d: int) -> Point:
    """Recall of the peers."""
    found = {"pygmtools": max(scores(run, instances) for run in gamgm_schedules(d).values())}
    return found | ({"pylibmgm": scores(pylibmgm, instances)} if with_pylibmgm else {})


STYLES = {
    "ga": ("this library, match()", "C0", "o-"),
    "pygmtools": ("pygmtools gamgm, best of 12 schedules", "C1", "s-"),
    "pylibmgm": ("pylibmgm, default", "C2", "^-"),
    "spectral": ("spectral start alone", "C0", "o:"),
    "pairwise": ("pair by pair (Hungarian)", "0.6", ":"),
}


def draw(results: dict[str, dict[str, Point]], out: Path) -> None:
    """Write the figure."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(10, 5.6), sharey=True, layout="constrained")
    for axis, (panel, points) in zip(axes.flat, results.items(), strict=True):
        for key, (label, colour, line) in STYLES.items():
            if all(key in found for found in points.values()):
                axis.plot(
                    list(points),
                    [found[key] for found in points.values()],
                    line,
                    color=colour,
                    label=label,
                    ms=4,
                )
        axis.set_title(panel, fontsize=10)
        axis.set_ylim(-0.02, 1.02)
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("recall of true matches")
    axes[1, 0].set_ylabel("recall of true matches")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    figure.savefig(out, dpi=80)


def main() -> None:
    """Measure, store the numbers and draw the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pylibmgm", action="store_true")
    parser.add_argument("--keep-peers", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("docs/figures/matching-recovery.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = options.out.with_suffix(".json")
    earlier = json.loads(kept.read_text()) if options.keep_peers else {}
    results = measure(options.seeds, partial(peer_scores, options.pylibmgm), earlier)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(results, indent=1))
    draw(results, options.out)


if __name__ == "__main__":
    main()
