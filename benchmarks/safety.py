"""Measure the safety of predictions on drawn hospitals: drift, gate and the choice of `auto`, with the demo model.

    python benchmarks/safety.py drift             # AUROC of home against away over batches of 16, verdicts by site
    python benchmarks/safety.py gate              # images that lose more than 5 Dice, with and without the gate
    python benchmarks/safety.py gate --methods norm,tent --images 32

`--data` names a folder for the drawn images; it is filled once and used again. `--model` names a copy of the demo model
with other parts, for example a judge that was fitted again. `--policy` names a yaml file with bounds of the gate.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from ttdg.adaptation import METHODS, SiteLearner, build_adapter, seed_all
from ttdg.adaptation.gate import gate
from ttdg.checkpoints import Model, load
from ttdg.data import find_sites, load_arrays, normalise
from ttdg.data.shifts import simulate
from ttdg.data.synthetic import write_benchmark
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.newsite.auto import LEAST_IMAGES
from ttdg.safety import Fingerprint, SourceShadow, measure_drift
from ttdg.safety.policy import GatePolicy, read_policy

HARM = 0.05  # loss of Dice that counts as harm
UNSEEN = 7  # seed of the images; the demo model was trained on those of seed 0
SIMULATED = 6  # simulated hospitals, of images of the source sites
BATCH = 16
QUICK = {"self-training": {"folder_steps": 40, "draw": 8, "lr": 3e-4}}  # enough to change masks on a CPU


def hospitals(model: Model, data: Path, images: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, images in [0, 1] and labels: the five drawn sites, then simulated hospitals."""
    if not data.exists():
        write_benchmark(data, "fundus", max(images, 48), seed=UNSEEN)
    generator = torch.Generator().manual_seed(0)
    sites = find_sites(data)
    loaded = {name: load_arrays(site.cases[:images], model.card.benchmark) for name, site in sites.items()}
    pixels = {name: (a.images.float() / 255, a.masks.long()) for name, a in loaded.items()}
    for name, (x, y) in pixels.items():
        yield name, x, y
    sources = list(model.card.sources)
    for number in range(SIMULATED):
        x, y = pixels[sources[number % len(sources)]]
        yield f"simulated {number}", *simulate(x, y, generator, group=len(x))


def auroc(home: Tensor, away: Tensor) -> float:
    """Share of pairs in which the away batch has the larger score; ties count half."""
    difference = away[:, None] - home[None, :]
    return float((difference > 0).double().mean() + (difference == 0).double().mean() / 2)


def measure_drifts(model: Model, data: Path, images: int) -> None:
    fingerprint = Fingerprint.from_part(model.parts["fingerprint"])
    shadow = SourceShadow(model.network, fingerprint.layers)
    scores: dict[bool, list[float]] = {True: [], False: []}
    print("site | batches | verdicts | distance | method of auto")
    for name, x, _ in hospitals(model, data, images):
        drifts = [
            measure_drift(
                fingerprint,
                [fingerprint.embed(shadow(normalise(part, model.card.benchmark.normalisation))[1])],
            )
            for part in x.split(BATCH)
            if len(part) == BATCH
        ]
        scores[name in model.card.sources] += [drift.distance for drift in drifts]
        verdicts = ", ".join(sorted({drift.verdict for drift in drifts}))
        distances = " ".join(f"{drift.distance:.2f}" for drift in drifts)
        choice = "judge" if drifts[0].verdict == "like home" or len(x) < LEAST_IMAGES else "universe"
        print(f"{name} | {len(drifts)} | {verdicts} | {distances} | {choice}", flush=True)
    home, away = (torch.tensor(scores[key]) for key in (True, False))
    print(f"AUROC {auroc(home, away):.3f} over {len(home)} home and {len(away)} away batches of {BATCH}")


def measure_gate(
    model: Model, data: Path, images: int, methods: list[str], only: str, policy: GatePolicy
) -> None:
    benchmark = model.card.benchmark
    losses: dict[tuple[str, bool], list[Tensor]] = {}
    seconds: dict[tuple[str, bool], float] = {}
    for name, x, labels in hospitals(model, data, images):
        if only and name not in only.split(","):
            continue
        x, truth = normalise(x, benchmark.normalisation), region_masks(labels, benchmark.regions)

        def score(logits: Tensor, truth: Tensor = truth) -> Tensor:
            return dice(region_probabilities(logits, benchmark.regions), truth).mean(1)

        with torch.no_grad():
            source = score(torch.cat([model.network(part) for part in x.split(8)]))
        for method in methods:
            for gated in (False, True):
                seed_all(0)
                adapter = build_adapter(model, method, QUICK.get(method, {}))
                learns = isinstance(adapter, SiteLearner)
                if gated:
                    adapter = gate(adapter, model, benchmark.regions, policy, METHODS[method].memory)
                start = time.perf_counter()
                if learns:
                    adapter.learn(x.split(8))
                    logits = torch.cat([adapter.predict_frozen(part) for part in x.split(8)])
                else:
                    logits = torch.cat([adapter(part) for part in x.split(8)])
                key = method, gated
                seconds[key] = seconds.get(key, 0.0) + time.perf_counter() - start
                gain = score(logits) - source
                losses.setdefault(key, []).append(gain)
                print(
                    f"{name} | {method} | {'gate' if gated else 'plain'} | source {100 * source.mean():.1f} | gain "
                    f"{100 * gain.mean():+.1f} | harmed {int((gain < -HARM).sum())} of {len(gain)}",
                    flush=True,
                )
    print("\nmethod | gain | gain with gate | harmed | harmed with gate | seconds | seconds with gate")
    for method in methods:
        plain, kept = (torch.cat(losses[method, gated]) for gated in (False, True))
        harmed = [f"{100 * (gain < -HARM).double().mean():.1f} %" for gain in (plain, kept)]
        print(
            f"{method} | {100 * plain.mean():+.2f} | {100 * kept.mean():+.2f} | {' | '.join(harmed)} | "
            f"{seconds[method, False]:.0f} | {seconds[method, True]:.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("drift", "gate"))
    parser.add_argument("--data", type=Path, default=Path("safety-data"))
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--only", default="", help="names of hospitals, separated by commas; default: all")
    parser.add_argument("--methods", default="self-training,norm,tent,cotta")
    parser.add_argument("--model", default="demo", help="the demo model, or a copy of it with other parts")
    parser.add_argument("--policy", type=Path, help="bounds of the gate; default: those of the package")
    arguments = parser.parse_args()
    model = load(arguments.model)
    policy = read_policy(arguments.policy) if arguments.policy else GatePolicy()
    if arguments.what == "drift":
        measure_drifts(model, arguments.data, arguments.images)
    else:
        measure_gate(
            model, arguments.data, arguments.images, arguments.methods.split(","), arguments.only, policy
        )


if __name__ == "__main__":
    main()
