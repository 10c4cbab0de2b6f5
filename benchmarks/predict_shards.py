"""A folder of many small drawn images, answered in shards by a Ray cluster of local nodes of one core each.

    python benchmarks/predict_shards.py kill --images 100000 --shards 40
    python benchmarks/predict_shards.py rate --images 4000 --shards 8 --repeats 3

`kill` answers the folder on two nodes. When a third of the images is answered, one node is killed, with all its
processes, and another takes its place. Counted are images without an answer or with several, in the manifest, in the
masks and in the audit log, whose chain is verified. The masks of 2,000 images spread over the folder are compared with
those of a run without shards.

`rate` answers the folder alternately on one and on two nodes and prints images per second: of the shards alone, between
the first and the last tenth of the images, and of the whole command, with its start and the merge.

The images are discs of 32 × 32 pixels, the network is the light one without training, and the method is `alpha-bn`,
whose answers depend on the statistics of a batch of 16. Needs Ray: `pip install 'ttdg[cluster]'`.
"""

import argparse
import csv
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ray
import torch
from ray.cluster_utils import Cluster

from fuzz_world import FOLDER, draw_discs, draw_images, save_model
from ttdg.newsite import FolderResult, predict
from ttdg.newsite.audit import verify_audit
from ttdg.newsite.shards import Sharding

BATCH = 16  # images


class Nodes:
    """A Ray cluster of local nodes of one core each; its head runs no tasks."""

    def __init__(self, count: int) -> None:
        self.small = small = {"object_store_memory": 80_000_000}
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small}
        )
        self.nodes = [self.cluster.add_node(num_cpus=1, **small) for _ in range(count)]

    def replace(self) -> None:
        """Kill a node, and start another."""
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)
        self.nodes.append(self.cluster.add_node(num_cpus=1, **self.small))

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *error: object) -> None:
        ray.shutdown()
        self.cluster.shutdown()


def run(
    nodes: Nodes,
    world: tuple[Any, Path, Path],
    out: Path,
    shards: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FolderResult:
    """Answer the folder on the cluster."""
    model, folder, images = world
    sharding = Sharding(shards, str(folder), "ray", threads=1, address=nodes.cluster.address)
    return predict(
        model, images, out, method="alpha-bn", batch=BATCH, overlays=False, shards=sharding, progress=progress
    )


def kill(world: tuple[Any, Path, Path], folder: Path, count: int, shards: int) -> int:
    """Answer all images though a node is killed; return the number of mistakes."""
    out, killed = folder / "out", list[int]()
    began = time.monotonic()
    with Nodes(2) as nodes:

        def progress(done: int, total: int) -> None:
            if done >= total / 3 and not killed:
                killed.append(done)
                print(
                    f"{done} of {total} after {time.monotonic() - began:.0f} s: a node is killed", flush=True
                )
                nodes.replace()  # Ray starts nodes in the main thread only

        result = run(nodes, world, out, shards, progress)
    print(f"{result.done} answered, {result.kept} kept, in {time.monotonic() - began:.0f} s", flush=True)
    report = verify_audit(out)
    with (out / "manifest.csv").open() as file:
        rows = Counter(row["file"] for row in csv.DictReader(file) if row["status"] == "segmented")
    logged = Counter(answer["file"] for _, answer in report.answers())
    masks = sum(1 for _ in (out / "masks").rglob("*.png"))
    sample = sorted(path for path in world[2].iterdir())[:: max(1, count // FOLDER // 2)][:2]
    differ = compared = 0
    for part in sample:
        predict(world[0], part, folder / part.name, method="alpha-bn", batch=BATCH, overlays=False)
        for mask in (folder / part.name / "masks").iterdir():
            compared += 1
            differ += digest(mask) != digest(out / "masks" / part.name / mask.name)
    mistakes = {
        "not killed": not killed,
        "rows lost": count - len(rows),
        "rows doubled": sum(rows.values()) - len(rows),
        "masks lost": count - masks,
        "answers not logged": count - len(logged),
        "answers logged twice": sum(logged.values()) - len(logged),
        "masks that differ from the log": len(report.masks),
        "problems of the log": len(report.problems),
        "left from shards": (out / "shards").exists(),
        f"of {compared} masks differ from a run without shards": differ,
    }
    print(", ".join(f"{int(number)} {name}" for name, number in mistakes.items()))
    return sum(map(int, mistakes.values()))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rate(world: tuple[Any, Path, Path], folder: Path, shards: int, repeats: int) -> None:
    """Print the rates of one and of two nodes in alternating runs, and their ratios."""
    rates: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    for number in range(repeats):
        for count in (1, 2) if number % 2 == 0 else (2, 1):
            times: list[tuple[float, int]] = []
            with Nodes(count) as nodes:
                began = time.monotonic()
                result = run(
                    nodes, world, folder / f"{number}-{count}", shards,
                    lambda done, total, times=times: times.append((time.monotonic(), done)),
                )  # fmt: skip
                seconds = time.monotonic() - began
            inside = [(t, done) for t, done in times if 0.1 * result.done <= done <= 0.9 * result.done]
            steady = (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
            rates[count].append((steady, result.done / seconds))
            load = os.getloadavg()[0]
            print(
                f"{count} node{'s' * (count > 1)}: {steady:.0f} images/s in the shards, {rates[count][-1][1]:.0f} with "
                f"start and merge; load {load:.1f}",
                flush=True,
            )
    for place, name in enumerate(("in the shards", "with start and merge")):
        ratios = [two[place] / one[place] for one, two in zip(rates[1], rates[2], strict=True)]
        print(
            f"{name}: two nodes {statistics.median(ratios):.2f} × one ({', '.join(f'{r:.2f}' for r in ratios)})"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=("kill", "rate"))
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        discs = draw_discs(folder / "discs", 0, 1)
        model = save_model(discs, folder / "model", 0)
        began = time.monotonic()
        images = draw_images(folder / "images", options.images)
        print(f"{options.images} images drawn in {time.monotonic() - began:.0f} s", flush=True)
        world = model, folder / "model", images
        if options.task == "rate":
            rate(world, folder, options.shards, options.repeats)
            return 0
        return int(bool(kill(world, folder, options.images, options.shards)))


if __name__ == "__main__":
    sys.exit(main())
