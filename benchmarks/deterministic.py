"""What repeatable gradients cost on a GPU, and how far reruns differ with and without them.

    python benchmarks/deterministic.py                                   # the demo model at a synthetic site
    python benchmarks/deterministic.py -m models/no-etis -d ~/data/polyp -b polyp --site etis --out spread.json

Every method runs over the same stream several times, in turns with and without deterministic algorithms. For each
method the table has the seconds of both, their ratio, and for both the spread of mean Dice over the reruns (largest
minus smallest, in points), the largest change of an image's Dice, and whether all reruns were equal bit for bit.
"""

import argparse
import json
import statistics
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ttdg.checkpoints import Model, load
from ttdg.cli.selection import choose_methods
from ttdg.data import Benchmark, Site, find_sites, load_benchmark
from ttdg.data.synthetic.write import write_benchmark
from ttdg.errors import UserError
from ttdg.evaluation.evaluate import Evaluation
from ttdg.evaluation.site import Setting, evaluate_site
from ttdg.networks.devices import resolve_device

GOAL = 1.10  # accepted ratio of the times
SITE = "summit"  # of the synthetic benchmark


@dataclass
class Reruns:
    """The times and scores of one method in one mode."""

    seconds: list[float] = field(default_factory=list)
    dice: list[list[float]] = field(default_factory=list)  # rerun → image and region

    def add(self, result: Evaluation) -> None:
        """Add a rerun."""
        self.seconds.append(result.about["adapting_seconds"])
        self.dice.append([value for *_, metric, value in result.rows if metric == "dice"])

    def summary(self) -> dict[str, float | bool]:
        """Return the median time without the first run, which warms up, and the differences of the scores."""
        means = [100 * statistics.fmean(scores) for scores in self.dice]
        images = torch.tensor(self.dice, dtype=torch.float64)
        return {
            "seconds": statistics.median(self.seconds[1:]),
            "dice": statistics.fmean(means),
            "spread": max(means) - min(means),
            "largest": 100 * float((images.amax(0) - images.amin(0)).max()),
            "equal": bool((images == images[0]).all()),
        }


def measure(
    model: Model, site: Site, benchmark: Benchmark, setting: Setting, reruns: int
) -> dict[str, dict[str, float | bool]]:
    """Run one method in both modes, in turns, so that a busy machine affects both equally."""
    modes = {"usual": Reruns(), "deterministic": Reruns()}
    for _ in range(reruns + 1):
        for name, found in modes.items():
            own = replace(setting, deterministic=name == "deterministic")
            found.add(evaluate_site(model, site, benchmark, own, shuffle=True))
    return {name: found.summary() for name, found in modes.items()}


def opened(arguments: argparse.Namespace, scratch: Path) -> tuple[Benchmark, Site]:
    """Return the benchmark and the site: the named one, or a synthetic one, with as many images as asked for."""
    if arguments.data is None:
        write_benchmark(scratch, "fundus", arguments.images, size=64, seed=0)
        folder, name, benchmark = scratch, SITE, None
    else:
        folder, name, benchmark = arguments.data, arguments.site, arguments.benchmark
    sites = find_sites(folder)
    if name not in sites:
        raise UserError(f"no site {name!r}; the folder has {', '.join(sites)}")
    return load_benchmark(benchmark, folder), replace(
        sites[name], cases=sites[name].cases[: arguments.images]
    )


def line(method: str, found: dict[str, dict[str, float | bool]]) -> str:
    """Return one line of the table."""
    usual, fixed = found["usual"], found["deterministic"]
    ratio = fixed["seconds"] / usual["seconds"]
    cells = [f"{usual['seconds']:.2f}", f"{ratio:.2f}{' !' if ratio > GOAL else ''}"]
    for mode in (usual, fixed):
        cells += [f"{mode['spread']:.3f}", f"{mode['largest']:.2f}", "yes" if mode["equal"] else "no"]
    return "| " + " | ".join([method, *cells]) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("-d", "--data", type=Path)
    parser.add_argument("-b", "--benchmark")
    parser.add_argument("--site")
    parser.add_argument("--methods", nargs="+", default=["all"])
    parser.add_argument("--images", type=int, default=40, help="images of the stream")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--stream", default="online")
    parser.add_argument("--reruns", type=int, default=3, help="runs in each mode, after one that warms up")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="json file with all numbers")
    given = parser.parse_args(arguments)
    model = load(given.model, resolve_device(given.device))
    everything = {}
    columns = (
        "method",
        "s",
        "ratio",
        "spread",
        "largest",
        "equal",
        "spread, det.",
        "largest, det.",
        "equal, det.",
    )
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic implementation.*")
        benchmark, site = opened(given, Path(scratch))
        for method in choose_methods(given.methods, model.parts):
            setting = Setting(site.name, method, given.stream, given.batch)
            everything[method] = measure(model, site, benchmark, setting, given.reruns)
            print(line(method, everything[method]), flush=True)
            if given.out is not None:
                given.out.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
