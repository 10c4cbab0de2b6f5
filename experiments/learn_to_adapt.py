"""Learning to adapt: does one gradient step, with a learned rate for each tensor, help, and is it the universe's merit?

    python experiments/learn_to_adapt.py --model runs/a --data $TTDG_DATA/polyp --out results/learn [--norm learned]

Fits the rates of every inner loss on simulated hospitals of the source's training images, and reports, on images held
out: how the loss's gradient agrees with the supervised one, and what the step gains over the source and over the same
BatchNorm statistics without it, at simulated hospitals and at the real targets. Nothing is chosen at a target.
Rows named "constant" are controls: a step that is the same for every batch is more source training, no adaptation.
"""

import argparse
import copy
import csv
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ttdg.adapt import batchnorm
from ttdg.adapt.constant_step import mean_steps, stepped, tuned_step
from ttdg.adapt.mixing import fit_mixing, set_mixing
from ttdg.adapt.rates import (
    CEILING,
    MIX,
    VARIANTS,
    LearnedStep,
    Own,
    agreement,
    fit_rates,
    hospitals,
    prepared,
)
from ttdg.data import Arrays, Benchmark, find_sites, load_site, normalise
from ttdg.errors import UserError
from ttdg.experiment.statistics import bootstrap
from ttdg.files import whole_file
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.prior import MorphologyPrior
from ttdg.training import Model, Sources, load, load_sources

Batches = Iterable[tuple[Tensor, Tensor]]


def study(
    model: Model,
    sources: Sources,
    targets: Mapping[str, Arrays],
    benchmark: Benchmark,
    device: str | torch.device,
    *,
    variants: Sequence[str] = VARIANTS,
    ceiling: bool = False,
    norm: str = "mix",
    normalised: bool = False,
    steps: int = 60,
    episodes: int = 16,
    images: int = 64,
    group: int = 4,
    seed: int = 0,
) -> dict[str, Any]:
    """Agreement of every variant, and Dice in points: one row for each variant and place. Targets as they are given,
    so shuffle them first; their labels are read by the metric alone."""
    clock, device = time.perf_counter(), torch.device(device)
    network = copy.deepcopy(model.network).to(device)
    prior = MorphologyPrior.from_part(model.parts["prior"]).to(device)
    train, held_out = list(sources.train.values()), list(sources.held_out.values())
    mode: batchnorm.Mode = MIX
    if norm == "learned":
        fit_mixing(network, train, benchmark, steps=steps, seed=seed)
        mode = Own()
    wanted = (*variants, CEILING) if ceiling else tuple(variants)
    rates = fit_rates(
        network, prior, train, benchmark, variants=wanted, steps=steps, group=group, normalised=normalised,
        norm=mode, seed=seed,
    )  # fmt: skip
    agreed = agreement(
        network, prior, held_out, benchmark, rates, episodes=episodes, group=group, norm=mode, seed=seed + 1
    )
    answers: dict[str, Callable[[Tensor], Tensor]] = {
        "source": prepared(network, batchnorm.EVAL),
        "mix": prepared(network, mode),
    }
    answers |= {name: LearnedStep(network, prior, rates[name], name, norm=mode) for name in variants}
    fixed = mean_steps(
        network, prior, train, benchmark, {name: rates[name] for name in variants}, episodes=episodes,
        group=group, norm=mode, seed=seed + 2,
    )  # fmt: skip
    fixed = {f"{name}, constant": step for name, step in fixed.items()}
    fixed["tuned, constant"] = tuned_step(
        network, train, benchmark, steps=steps, group=group, norm=mode, seed=seed
    )
    answers |= {name: stepped(network, step, mode) for name, step in fixed.items()}
    places: dict[str, Batches] = {
        "simulated": hospitals(held_out, benchmark, episodes, group, seed + 1, device)
    }
    places |= {site: batches(arrays, benchmark, group, images, device) for site, arrays in targets.items()}
    rows = [
        row
        for place, some in places.items()
        for row in compared(place, scores(answers, some, benchmark), group)
    ]
    return {
        "norm": norm, "normalised": normalised, "steps": steps, "seed": seed,
        "agreement": {name: asdict(value) for name, value in agreed.items()},
        "rates": {name: value.values.tolist() for name, value in rates.items()},
        "mixing": set_mixing(network) if norm == "learned" else None,
        "dice": rows,
        "seconds": time.perf_counter() - clock,
    }  # fmt: skip


def batches(
    arrays: Arrays, benchmark: Benchmark, group: int, count: int, device: torch.device
) -> Iterable[tuple[Tensor, Tensor]]:
    assert arrays.masks is not None
    for at in range(0, min(count, len(arrays.cases)), group):
        some = arrays.images[at : at + group].to(device).float() / 255
        yield normalise(some, benchmark.normalisation), arrays.masks[at : at + group].to(device).long()


@torch.no_grad()
def scores(
    answers: Mapping[str, Callable[[Tensor], Tensor]], some: Batches, benchmark: Benchmark
) -> dict[str, Tensor]:
    """Dice of every image, in points, the mean over regions; fetched from the device once."""
    found: dict[str, list[Tensor]] = {name: [] for name in answers}
    for images, labels in some:
        truth = region_masks(labels, benchmark.regions)
        for name, answer in answers.items():
            found[name].append(dice(region_probabilities(answer(images), benchmark.regions), truth).mean(1))
    return {name: 100 * torch.cat(values).cpu() for name, values in found.items()}


def compared(place: str, found: Mapping[str, Tensor], group: int) -> list[dict[str, Any]]:
    """Gains over the source, over the norm alone, over the method's own constant step and over the step with a random
    universe, paired by image; intervals resample batches (at simulated hospitals: hospitals) and images in them."""
    rows = []
    for name, values in found.items():
        row: dict[str, Any] = {"place": place, "method": name, "images": len(values)}
        row["dice"] = round(float(values.mean()), 2)
        own = name + ", constant"
        others = {"source": "source", "mix": "mix", "constant": own, "random": "random universe"}
        for other, theirs in others.items():
            if theirs not in found:
                row |= {f"over {other}": "", f"over {other}, 95 %": ""}
                continue
            gain = values - found[theirs]
            low, high = bootstrap([part.numpy() for part in gain.split(group)], draws=1000)
            row |= {
                f"over {other}": round(float(gain.mean()), 2),
                f"over {other}, 95 %": f"{low:.2f} to {high:.2f}",
            }
        rows.append(row)
    return rows


def write(result: Mapping[str, Any], out: Path, name: str) -> None:
    """All of it as json, the gains beside the agreement as csv."""
    out.mkdir(parents=True, exist_ok=True)
    short = ("cosine", "positive", "size", "before", "after")
    rows = [
        {"norm": result["norm"]}
        | row
        | {key: f"{result['agreement'].get(row['method'], {}).get(key, float('nan')):.4f}" for key in short}
        for row in result["dice"]
    ]
    with whole_file(out / f"{name}.json") as temporary:
        temporary.write_text(json.dumps(result))
    with whole_file(out / f"{name}.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def show(result: Mapping[str, Any]) -> None:
    print(f"norm: {result['norm']}; {result['seconds']:.0f} s")
    print("agreement at simulated hospitals of held-out source images")
    for name, a in result["agreement"].items():
        print(
            f"  {name:18} cosine {a['cosine']:+.3f}, above 0 in {a['positive']:4.0%}, size {a['size']:.2e}, "
            f"supervised loss {a['before']:.4f} → {a['after']:.4f}"
        )
    for row in result["dice"]:
        print("  " + "  ".join(f"{value!s:>16}" for value in row.values()))


def shuffled(arrays: Arrays, seed: int) -> Arrays:
    """Sites of video frames hold runs of near-twins."""
    assert arrays.masks is not None
    rows = list(range(len(arrays.cases)))
    random.Random(seed).shuffle(rows)
    return Arrays(arrays.images[rows], arrays.masks[rows], tuple(arrays.cases[row] for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a model with its prior, or demo")
    parser.add_argument("--data", type=Path, required=True, help="folder of the benchmark's sites")
    parser.add_argument(
        "--targets", default="", help="separated by commas; all sites not trained on by default"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--norm", choices=("mix", "learned"), default="mix")
    parser.add_argument("--normalised", action="store_true", help="steps of one length for every batch")
    parser.add_argument("--ceiling", action="store_true", help="also fit the step on the labels")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    for name, value in {"steps": 60, "episodes": 16, "images": 64, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    model = load(options.model, options.device)
    if "prior" not in model.parts:
        raise UserError(f"{options.model} has no prior; fit one with `ttdg prior`")
    sites = find_sites(options.data)
    benchmark = model.card.benchmark
    named = (
        options.targets.split(",") if options.targets else [s for s in sites if s not in model.card.sources]
    )
    result = study(
        model,
        load_sources({name: sites[name] for name in model.card.sources}, benchmark),
        {name: shuffled(load_site(sites[name], benchmark), options.seed) for name in named},
        benchmark, options.device, variants=options.variants.split(","), ceiling=options.ceiling,
        norm=options.norm, normalised=options.normalised, steps=options.steps, episodes=options.episodes,
        images=options.images, seed=options.seed,
    )  # fmt: skip
    write(result, options.out, f"{options.norm}{'-normalised' * options.normalised}-seed{options.seed}")
    show(result)


if __name__ == "__main__":
    main()
