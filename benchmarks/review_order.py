"""Count the failures (Dice below 0.6) that a reviewer finds in the first 10 % and 20 % of an order of review.

    python benchmarks/review_order.py --records run/records/*.csv.gz   # records of `ttdg bench` or `ttdg evaluate`
    python benchmarks/review_order.py                                  # drawn hospitals, the demo model and `judge`

Records hold the expected Dice of self-assessing methods (`judge`, `universe`), and no entropy; the entropy is measured
on the drawn hospitals only. A random order finds, on average, as large a share as it looks at.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from safety import hospitals
from ttdg.adaptation import build_adapter
from ttdg.checkpoints import load
from ttdg.data import normalise
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


def of_drawn(data: Path, count: int) -> None:
    model = load("demo")
    benchmark, adapter = model.card.benchmark, build_adapter(model, "judge", {})
    truth, expected, entropy = list[torch.Tensor](), list[float](), list[torch.Tensor]()
    for _, images, labels in hospitals(model, data, count):
        for x, y in zip(images.split(8), labels.split(8), strict=True):
            logits = adapter(normalise(x, benchmark.normalisation))
            P = logits.softmax(1)
            truth.append(
                dice(
                    region_probabilities(logits, benchmark.regions), region_masks(y, benchmark.regions)
                ).mean(1)
            )
            entropy.append(-(P * P.clamp(min=1e-7).log()).sum(1).mean((1, 2)))
            said = adapter.assessment()
            expected += map(failure_probability, said.dice.tolist(), said.half_width.tolist())
    print("images of | images | failures | expected Dice: first 10 % | 20 % | entropy: first 10 % | 20 %")
    doubts = {"expected": np.array(expected), "entropy": torch.cat(entropy).double().numpy()}
    print(line("drawn hospitals", torch.cat(truth).double().numpy(), doubts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=Path, nargs="*", default=[])
    parser.add_argument("--data", type=Path, default=Path("safety-data"))
    parser.add_argument("--images", type=int, default=16)
    arguments = parser.parse_args()
    if not arguments.records:
        of_drawn(arguments.data, arguments.images)
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
