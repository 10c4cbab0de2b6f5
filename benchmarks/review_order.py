"""Count the failures (Dice below 0.6) that a reviewer finds in the first 10 % and 20 % of an order of review.

    python benchmarks/review_order.py --records run/records/*.csv.gz   # records of `ttdg bench` or `ttdg evaluate`
    python benchmarks/review_order.py                                  # drawn hospitals, the demo model and `judge`
    python benchmarks/review_order.py --models no-etis no-bkai --data DATA --images 100 --out review.csv

Records hold the expected Dice of self-assessing methods (`judge`, `universe`), and no entropy. The entropy is measured
on drawn hospitals, or on the real sites that a model with a judge was not trained on (one list for each site).
A random order finds, on average, as large a share as it looks at.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from safety import hospitals
from safety_sites import spread
from ttdg.adaptation import build_adapter
from ttdg.checkpoints import Model, load
from ttdg.data import find_sites, load_arrays, normalise
from ttdg.evaluation.records import read_about, read_rows
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.safety.review import FAILURE, failure_probability, failures_found


def line(name: str, truth: np.ndarray, doubts: dict[str, np.ndarray]) -> str:
    """One row of the table: images, failures, and the shares found by each order."""
    cells = [name, str(len(truth)), str(int((truth < FAILURE).sum()))]
    for doubt in doubts.values():
        cells += [f"{100 * share:.0f} %" for share in failures_found(truth, doubt).values()]
    return " | ".join(cells)


def of_record(path: Path) -> tuple[str, np.ndarray, np.ndarray] | None:
    """Method, true Dice and probability of a failure of every image; None without an expected Dice."""
    values: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for target, site, case, _, metric, value in read_rows(path):
        if metric in ("dice", "expected", "half_width"):
            values[target, site, case][metric].append(value)
    images = [image for image in values.values() if {"dice", "expected", "half_width"} <= image.keys()]
    if not images:
        return None
    doubt = [failure_probability(image["expected"][0], image["half_width"][0]) for image in images]
    truth = np.array([np.mean(image["dice"]) for image in images])
    return str(read_about(path)["method"]), truth, np.array(doubt)


Hospitals = Iterable[tuple[str, torch.Tensor, torch.Tensor]]  # name, images in [0, 1] and labels


def answer(model: Model, sites: Hospitals) -> Iterator[dict[str, Any]]:
    """Answer images with `judge`: for each image its true Dice and the doubts by expected Dice and by entropy."""
    benchmark, adapter = model.card.benchmark, build_adapter(model, "judge", {})
    device = next(model.network.parameters()).device
    for name, images, labels in sites:
        for x, y in zip(images.to(device).split(8), labels.to(device).split(8), strict=True):
            logits = adapter(normalise(x, benchmark.normalisation))
            P, said = logits.softmax(1), adapter.assessment()
            R, truth = region_probabilities(logits, benchmark.regions), region_masks(y, benchmark.regions)
            columns = {
                "dice": dice(R, truth).mean(1).tolist(),
                "expected": map(failure_probability, said.dice.tolist(), said.half_width.tolist()),
                "entropy": (-(P * P.clamp(min=1e-7).log()).sum(1).mean((1, 2))).tolist(),
            }
            for values in zip(*columns.values(), strict=True):
                yield {"site": name, **dict(zip(columns, values, strict=True))}


def left_out(model: Model, data: Path, count: int) -> Hospitals:
    """The sites that a model was not trained on; the images are spread over the site."""
    benchmark = model.card.benchmark
    for name, site in find_sites(data / benchmark.name).items():
        if name not in model.card.sources:
            arrays = load_arrays(spread(site.cases, count), benchmark)
            yield name, arrays.images.float() / 255, arrays.masks.long()


def summary(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """One row of the table from answered images."""
    truth, *doubts = (np.array([row[key] for row in rows]) for key in ("dice", "expected", "entropy"))
    return line(name, truth, dict(zip(("expected", "entropy"), doubts, strict=True)))


def of_models(models: Sequence[Path], data: Path, count: int, out: Path | None, device: str) -> None:
    """Answer drawn hospitals with the demo model, or left-out real sites; print a row for each site and for all."""
    print("images of | images | failures | expected Dice: first 10 % | 20 % | entropy: first 10 % | 20 %")
    rows: list[dict[str, Any]] = []
    for folder in models:
        model = load(folder, device)
        for site in left_out(model, data, count):
            rows += (own := list(answer(model, [site])))
            print(summary(site[0], own), flush=True)
            if out is not None:
                with out.open("w", newline="", encoding="utf-8") as file:
                    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(
                        {k: v if k == "site" else f"{v:.4f}" for k, v in row.items()} for row in rows
                    )
    if not models:
        demo = load("demo")
        rows = list(answer(demo, hospitals(demo, data, count)))
    print(summary("all", rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=Path, nargs="*", default=[])
    parser.add_argument("--data", type=Path, default=Path("safety-data"))
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument(
        "--models", type=Path, nargs="*", default=[], help="models with a judge; default: drawn sites"
    )
    parser.add_argument("--out", type=Path, help="csv of the images of real sites")
    parser.add_argument("--device", default="cpu", help="of the models of real sites")
    arguments = parser.parse_args()
    if not arguments.records:
        of_models(arguments.models, arguments.data, arguments.images, arguments.out, arguments.device)
        return
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    for path in arguments.records:
        if (record := of_record(path)) is not None:
            found[record[0]].append(record[1:])
    print("method | images | failures | expected Dice: first 10 % | 20 %")
    for method, parts in found.items():
        truth, doubt = (np.concatenate(values) for values in zip(*parts, strict=True))
        print(line(method, truth, {"expected": doubt}))


if __name__ == "__main__":
    main()
