"""Seconds that each phase of `fit_judge` takes, with the demo model on drawn hospitals.

    python benchmarks/fit_judge.py [--size 256] [--controls] [--cases 120] [--data FOLDER] [--save JUDGE]

The four source hospitals of the demo model are drawn as `ttdg data synth` draws them, unless a folder holds them
already. Time inside a phase that is listed on its own is not counted in the phase around it. CPU seconds over all
threads are printed beside wall-clock seconds, because they depend less on other work of the machine.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from ttdg.adaptation.judge import evidence, fit
from ttdg.checkpoints import load
from ttdg.data import Sources, find_sites, load_sources
from ttdg.data.synthetic import write_benchmark
from ttdg.evaluation.site import benchmark_for_model
from ttdg.prior import MorphologyPrior

PHASES: dict[str, tuple[Any, str]] = {  # name of a phase: module and function
    "mixing weights": (fit, "fit_mixing"),
    "point locations": (evidence, "point_locations"),
    "evidence: simulated shifts": (evidence, "simulate"),
    "evidence: readings": (evidence, "predict_readings"),
    "evidence: averages": (evidence, "average_readings"),
    "evidence: fusion": (evidence, "fuse"),
    "evidence: universe signals": (evidence, "universe_signals"),
    "evidence: other signals": (evidence, "prediction_signals"),
    "evidence: Dice": (evidence, "candidate_dice"),
    "regressors": (fit, "judge_part"),
}


@dataclass
class Stopwatch:
    """Wall-clock and CPU seconds of nested phases, each without the phases inside it."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    _inside: list[list[float]] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block."""
        self._inside.append([0.0, 0.0])
        start = _now()
        try:
            yield
        finally:
            spent = [after - before for after, before in zip(_now(), start, strict=True)]
            inner = self._inside.pop()
            for i, (all_of_it, nested) in enumerate(zip(spent, inner, strict=True)):
                self.seconds[name][i] += all_of_it - nested
                if self._inside:
                    self._inside[-1][i] += all_of_it

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its calls timed."""

        def call(*args: Any, **keywords: Any) -> Any:
            with self.phase(name):
                return function(*args, **keywords)

        return call


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def sources(names: list[str], benchmark: Any, cases: int, folder: Path | None) -> Sources:
    """The source hospitals, drawn if `folder` is None."""
    with tempfile.TemporaryDirectory() as temporary:
        data = folder or write_benchmark(Path(temporary) / "hospitals", "fundus", cases)
        sites = find_sites(data)
        return load_sources({name: sites[name] for name in names}, benchmark)


def main() -> None:
    """Fit the judge once and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=256, help="side of the images in pixels")
    parser.add_argument("--cases", type=int, default=120, help="images of each hospital")
    parser.add_argument("--controls", action="store_true", help="also fit the control judges")
    parser.add_argument("--mixing-steps", type=int, default=None)
    parser.add_argument("--data", type=Path, help="folder of drawn hospitals")
    parser.add_argument("--save", type=Path, help="file for the tensors of the fitted judge")
    given = parser.parse_args()
    model = load("demo")
    benchmark = replace(benchmark_for_model(model.card, model.card.benchmark), size=given.size)
    images = sources(list(model.card.sources), benchmark, given.cases, given.data)
    prior = MorphologyPrior.from_part(model.parts["prior"])
    stopwatch = Stopwatch()
    for name, (module, function) in PHASES.items():
        setattr(module, function, stopwatch.timed(name, getattr(module, function)))
    settings = {"controls": given.controls} | (
        {"mixing_steps": given.mixing_steps} if given.mixing_steps else {}
    )
    with stopwatch.phase("rest"):
        part = fit.fit_judge(model.network, prior, images.train, images.held_out, benchmark, **settings)
    if given.save:
        save_file({name: value.contiguous() for name, value in part.tensors.items()}, given.save)
    print(f"{part.settings['images']} images of {given.size}²; {len(part.settings['signals'])} regressors")
    print(f"{'phase':<30}{'wall s':>8}{'CPU s':>8}")
    total = [sum(column) for column in zip(*stopwatch.seconds.values(), strict=True)]
    for name, (wall, cpu) in [
        *((name, stopwatch.seconds[name]) for name in (*PHASES, "rest")),
        ("all", total),
    ]:
        print(f"{name:<30}{wall:>8.1f}{cpu:>8.1f}")


if __name__ == "__main__":
    main()
