"""Try rules of choice on saved evidence, without images or a GPU.

    python experiments/judge_replay.py evidence [--nested]

For each model and kind of evidence, a regressor is fitted on the evidence of the source sites, as `ttdg fit-judge`
does, and applied to the target sites. The tables show the gain over `source` of each rule (margin, deviations): the
mean over transfers with an interval that resamples transfers, and the worst transfer. With --nested, the regressor of
a model with several source sites is also fitted on the evidence of single-source models of the same seed between those
sites. These are real shifts, and still no target site is used.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from ttdg.adaptation.judge.candidates import candidates_of
from ttdg.adaptation.judge.evidence import EvidenceTable, EvidenceTables, concatenate_tables
from ttdg.adaptation.judge.fit import regression_data
from ttdg.adaptation.judge.method import FALLBACK, UNIVERSES, EvidenceKind, choose
from ttdg.adaptation.judge.readings import READING_SETS
from ttdg.adaptation.judge.regressor import Prediction, fit_regressor
from ttdg.evaluation.statistics import bootstrap

RULES = list(product((0.02, 0.05, 0.1), (0.0, 0.5, 1.0)))  # (margin, deviations)
READINGS = READING_SETS["four"]
NAMES = [candidate.name for candidate in candidates_of(READINGS)]
UNFUSED = len(candidates_of(READINGS, fused=False))
METHODS: dict[EvidenceKind, str] = {
    "all": "judge",
    "universe": "universe-choice",
    "no-universe": "judge, no universe",
    "random-universe": "universe-choice, random universe",
    "no-class-mask": "universe-choice, no class mask",
}


def read_tables(path: Path) -> EvidenceTables:
    """Read tables saved by judge_evidence.py."""
    values = dict(np.load(path))
    tables = {}
    for universe in UNIVERSES:
        own = {
            key.removeprefix(f"{universe} "): torch.from_numpy(value).float()
            for key, value in values.items()
            if key.startswith(f"{universe} ")
        }
        dice, hospital = own.pop("dice"), own.pop("hospital").long()
        tables[universe] = EvidenceTable(own, dice, hospital, UNFUSED)
    return tables


def nested(folder: Path, model: str) -> list[EvidenceTables]:
    """Evidence of single-source models of the same seed, on the other source sites of this model."""
    benchmark, rest = model.split("-from-")
    names, seed = rest.rsplit("-", 1)
    sources = names.split("_")
    pairs = [(a, b) for a in sources for b in sources if a != b]
    paths = [folder / f"{benchmark}-from-{a}-{seed}.to.{b}.4.npz" for a, b in pairs]
    return [read_tables(path) for path in paths if path.exists()]


def target_predictions(
    folder: Path, with_nested: bool
) -> Iterator[tuple[str, EvidenceKind, Prediction, Tensor]]:
    """For each model, kind and target: the predictions and the Dice of every candidate and region, in batches of 4."""
    for source in sorted(folder.glob("*.source.npz")):
        model = source.name.removesuffix(".source.npz")
        fitted = concatenate_tables([read_tables(source), *(nested(folder, model) if with_nested else ())])
        seed = int(model.rsplit("seed", 1)[1])
        for kind in get_args(EvidenceKind):
            x, dice, _ = regression_data(fitted, kind)
            regressor = fit_regressor(x, dice, fitted["learned"].hospital, seed=seed)
            for path in sorted(folder.glob(f"{model}.to.*.4.npz")):
                x, dice, _ = regression_data(read_tables(path), kind)
                yield model, kind, regressor.predict(x), dice


def interval(gains: list[float]) -> str:
    """The mean over transfers with its 95 % bootstrap interval."""
    low, high = bootstrap([np.array([gain]) for gain in gains], resample_images=False, draws=10_000)
    return f"{np.mean(gains):+.2f} [{low:+.2f}, {high:+.2f}]"


def print_rules(folder: Path, with_nested: bool) -> None:
    """Print one table for each benchmark: the gain over `source` of each rule."""
    fallback, gains = NAMES.index(FALLBACK), defaultdict(list)
    for model, kind, predicted, dice in target_predictions(folder, with_nested):
        scores = dice.mean(2)
        for margin, deviations in RULES:
            chosen = choose(predicted.members, fallback, margin, deviations)
            gain = scores[torch.arange(len(scores)), chosen] - scores[:, 0]
            gains[model.split("-")[0], kind, margin, deviations].append(100 * float(gain.mean()))
    for benchmark in sorted({key[0] for key in gains}):
        print(f"\n**{benchmark}**\n")
        print(
            "| margin | deviations | judge | worst | universe-choice | worst | − random universe "
            "| judge − no universe |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for margin, deviations in RULES:
            by_kind = {kind: gains[benchmark, kind, margin, deviations] for kind in METHODS}
            cells = []
            for kind in ("all", "universe"):
                cells += [interval(by_kind[kind]), f"{min(by_kind[kind]):+.1f}"]
            for a, b in (("universe", "random-universe"), ("all", "no-universe")):
                cells.append(interval([x - y for x, y in zip(by_kind[a], by_kind[b], strict=True)]))
            print(f"| {margin} | {deviations} | {' | '.join(cells)} |")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("evidence", type=Path)
    parser.add_argument("--nested", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_rules(options.evidence, options.nested)


if __name__ == "__main__":
    main()
