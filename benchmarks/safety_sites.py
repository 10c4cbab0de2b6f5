"""Measure the drift verdict at real sites: held-out images of the source sites against sites that were left out.

    python benchmarks/safety_sites.py measure MODEL... -d DATA -o drift.csv   # one row for each batch of 16 images
    python benchmarks/safety_sites.py join drift.csv --gains docs/results/learn-arms.csv
    python benchmarks/safety_sites.py join drift.csv --records docs/records/learn-polyp docs/records/learn-fundus

A model folder holds a source model; DATA holds one folder for each benchmark. The fingerprint is fitted here: on
training images, one half of the held-out images and simulated hospitals of that half. By default these are few, so that
a CPU is enough; `--device cuda --images 256 --hospitals 48` takes as many as `ttdg fit-fingerprint`, if the sites have
them. Home batches come from the other half. No label is read. `join` compares the verdicts with gains that were
measured with labels, and states what `auto` would have chosen.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from scipy.stats import spearmanr
from torch import Tensor

from safety import BATCH, auroc
from ttdg.bench.jobs import Scoring
from ttdg.bench.results import read_table
from ttdg.checkpoints import load
from ttdg.data import Benchmark, find_sites, load_arrays, normalise
from ttdg.data.sites import Case, split
from ttdg.safety import Drift, Fingerprint, SourceShadow, fit_fingerprint, measure_drift

LEARNED, JUDGED = "chosen, three sizes", "not adapted"  # answers of the arm `universe`
Gains = dict[tuple[str, ...], float]  # by benchmark, sources, target and answer
WITHIN = 0.3  # Dice that `auto` may lose against the better fixed method
FIXED = ["benchmark", "sources", "site", "kind", "batch", "images", "verdict", "distance", "home_limit", "far_limit",
         "p_value"]  # fmt: skip


def spread(cases: Sequence[Case], count: int) -> list[Case]:
    """At most `count` cases, evenly spaced, so that frames of one video are rarely neighbours."""
    rows = torch.linspace(0, len(cases) - 1, min(count, len(cases))).round().long().tolist()
    return [cases[row] for row in rows]


def home_and_reference(held_out: Sequence[Case], images: int) -> tuple[list[Case], list[Case]]:
    """Home images and reference images. A site with fewer than two batches has no references."""
    if len(held_out) < 2 * BATCH:
        return spread(held_out, BATCH), []
    return spread(held_out[::2], images), spread(held_out[1::2], images)


def batches(cases: Sequence[Case], benchmark: Benchmark) -> Iterator[Tensor]:
    """Normalised batches of 16 images; every batch is spread over the cases."""
    for first in range(len(cases) // BATCH):
        x = load_arrays(list(cases[first :: len(cases) // BATCH])[:BATCH], benchmark).images
        yield normalise(x.float() / 255, benchmark.normalisation)


def measure_model(
    folder: Path, data: Path, images: int, hospitals: int, device: str
) -> Iterator[dict[str, object]]:
    """Yield a row for each batch, and one for all images of each site that was left out."""
    model = load(folder, device)
    benchmark, sources = model.card.benchmark, list(model.card.sources)
    sites = find_sites(data / benchmark.name)
    divided = {name: split(sites[name].cases) for name in sources}
    home = {name: home_and_reference(out, images) for name, (_, out) in divided.items()}
    train = {name: load_arrays(spread(kept, images), benchmark) for name, (kept, _) in divided.items()}
    references = {name: load_arrays(rest, benchmark) for name, (_, rest) in home.items() if rest}
    part = fit_fingerprint(model.network, train, references, benchmark, hospitals=hospitals)
    fingerprint = Fingerprint.from_part(part)
    shadow = SourceShadow(model.network, fingerprint.layers)
    tested = {name: ("home", cases) for name, (cases, _) in home.items()}
    tested |= {
        name: ("away", spread(site.cases, 2 * images)) for name, site in sites.items() if name not in sources
    }
    for name, (kind, cases) in tested.items():
        embedded = [fingerprint.embed(described(shadow, x.to(device))) for x in batches(cases, benchmark)]
        measured = [(str(number), measure_drift(fingerprint, [E])) for number, E in enumerate(embedded)]
        if kind == "away":
            measured.append(("all", measure_drift(fingerprint, embedded)))
        for batch, drift in measured:
            if drift is not None:
                yield {
                    "benchmark": benchmark.name, "sources": "+".join(sources), "site": name, "kind": kind,
                    "batch": batch, **row_of(drift),
                }  # fmt: skip


def described(shadow: SourceShadow, images: Tensor) -> dict[str, Tensor]:
    """The descriptions of a batch on the CPU, where the fingerprint is."""
    return {name: values.cpu() for name, values in shadow(images)[1].items()}


def row_of(drift: Drift) -> dict[str, object]:
    """The columns of a drift: the verdict and the distances over all, and by group."""
    values = list(drift.by_group.values())
    names = ["appearance", *(f"layer {i}" for i in range(1, len(values) - 1)), "shape"]
    numbers = {"distance": drift.distance, "home_limit": drift.home_limit, "far_limit": drift.far_limit,
               "p_value": drift.p_value, **dict(zip(names, values, strict=True))}  # fmt: skip
    rounded = {name: f"{value:.3f}" for name, value in numbers.items()}
    return {"images": drift.images, "verdict": drift.verdict, **rounded}


def measure(arguments: argparse.Namespace) -> None:
    """Measure every model and write the csv, after each model."""
    rows: list[dict[str, object]] = []
    for folder in arguments.models:
        rows += measure_model(folder, arguments.data, arguments.images, arguments.hospitals, arguments.device)
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*FIXED, *(name for name in rows[0] if name not in FIXED)],
                                    lineterminator="\n")  # fmt: skip
            writer.writeheader()
            writer.writerows(rows)
        print(f"{folder.name}: {len(rows)} rows", flush=True)


def separation(rows: Sequence[dict[str, str]], column: str) -> float:
    """AUROC of home against away batches by a column."""
    values = [
        torch.tensor([float(r[column]) for r in rows if r["kind"] == kind and r["batch"] != "all"])
        for kind in ("home", "away")
    ]
    return auroc(*values)


def join(arguments: argparse.Namespace) -> None:
    """Print the AUROC by model and description, and the verdicts beside the gains."""
    rows = [row for path in arguments.drifts for row in csv.DictReader(path.open(encoding="utf-8"))]
    models: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        models[row["benchmark"], row["sources"]].append(row)
    print("sources | home batches | away batches | AUROC")
    for (_, sources), own in models.items():
        home, away = (
            [r for r in own if r["kind"] == kind and r["batch"] != "all"] for kind in ("home", "away")
        )
        print(f"{sources} | {len(home)} | {len(away)} | {separation(own, 'distance'):.3f}")
    print("\nAUROC over all batches, by description")
    for column in ("distance", *(name for name in rows[0] if name not in FIXED)):
        print(f"{column} | {separation(rows, column):.3f}")
    gains: Gains = {}
    for folder in arguments.records:
        gains |= recorded_gains(folder, arguments.seed)
    if arguments.gains:
        for row in csv.DictReader(arguments.gains.open(encoding="utf-8")):
            if row["arm"] == "universe":
                gains[row["benchmark"], row["sources"], row["target"], row["answer"]] = float(row["gain"])
    compare([row for row in rows if row["batch"] == "all"], gains)


def recorded_gains(folder: Path, seed: int) -> Gains:
    """Gains of `universe` and `judge` over the source, of one seed of the folder stream of a benchmark."""
    table, answers = read_table(folder), {"universe": LEARNED, "judge": JUDGED}
    dice: Gains = {}
    for entry in table.run.entries:
        job = table.run.jobs[entry.job]
        if (
            isinstance(job, Scoring)
            and (job.stream, job.cases, job.learn, job.gate, job.seed)
            == ("folder", "all", "all", False, seed)
            and entry.job in table.about
        ):
            target = job.targets[0].name
            name = Benchmark.from_dict(table.run.jobs[job.training].benchmark).name
            dice[name, entry.sources, target, entry.label] = 100 * table.about[entry.job]["dice"][target]
    return {
        (*key, answers[label]): value - dice[*key, "source"]
        for (*key, label), value in dice.items()
        if label in answers
    }


def compare(rows: Sequence[dict[str, str]], gains: Gains) -> None:
    """Print for each transfer what `auto` chooses and how far it is behind, then the gain by verdict."""
    print("\nsources | target | distance | verdict | universe | judge | auto chooses | behind the better")
    by_verdict: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        key = row["benchmark"], row["sources"], row["site"]
        universe, judge = gains[*key, LEARNED], gains[*key, JUDGED]
        choice = {"like home": ("judge", judge), "not this kind of image": ("source", 0.0)}
        name, gain = choice.get(row["verdict"], ("universe", universe))
        behind = max(0.0, universe) - gain
        by_verdict[row["verdict"]].append(universe)
        print(
            f"{row['sources']} | {row['site']} | {row['distance']} | {row['verdict']} | {universe:+.2f} | "
            f"{judge:+.2f} | {name} | {behind:.2f}{' too much' if behind > WITHIN else ''}"
        )
    print("\nverdict | transfers | universe helps at | mean gain of universe")
    for verdict, values in by_verdict.items():
        helped = sum(value > 0 for value in values)
        print(f"{verdict} | {len(values)} | {helped} | {sum(values) / len(values):+.2f}")
    distances = [float(row["distance"]) for row in rows]
    learned = [gains[row["benchmark"], row["sources"], row["site"], LEARNED] for row in rows]
    if len(rows) > 2:
        print(f"rank correlation of distance and gain {spearmanr(distances, learned).statistic:+.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("models", type=Path, nargs="+")
    measuring.add_argument("-d", "--data", type=Path, required=True)
    measuring.add_argument("-o", "--out", type=Path, required=True)
    measuring.add_argument(
        "--images", type=int, default=16, help="training, reference and home images of a site"
    )
    measuring.add_argument("--hospitals", type=int, default=4, help="simulated hospitals of the calibration")
    measuring.add_argument("--device", default="cpu")
    measuring.set_defaults(action=measure)
    joining = commands.add_parser("join")
    joining.add_argument("drifts", type=Path, nargs="+")
    joining.add_argument("--gains", type=Path, help="csv of arms, such as docs/results/learn-arms.csv")
    joining.add_argument(
        "--records", type=Path, nargs="*", default=[], help="runs of learn-*.yaml, packed or not"
    )
    joining.add_argument("--seed", type=int, default=0, help="training seed of the records")
    joining.set_defaults(action=join)
    arguments = parser.parse_args()
    arguments.action(arguments)


if __name__ == "__main__":
    main()
