"""Other judges on kept evidence: `python experiments/judge_replay.py evidence [--nested]`. No GPU, no images.

For each model and kind of evidence a regressor is fitted on what the model did at its sources, as `ttdg fit-judge`
does, and asked about the targets: the gain over `source` by rule (margin, doubt), the mean over transfers with an
interval that resamples them, and the worst. With --nested, a model of several sources also learns from what
single-source models of the same seed did between those sources: real shifts, and still no target.
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
from ttdg.adaptation.judge.fit import EvidenceTable, Tables, concatenated, inputs
from ttdg.adaptation.judge.method import FALLBACK, UNIVERSES, EvidenceKind, choose
from ttdg.adaptation.judge.readings import SETS
from ttdg.adaptation.judge.regressor import Prediction, fit_regressor
from ttdg.evaluation.statistics import bootstrap

RULES = list(product((0.02, 0.05, 0.1), (0.0, 0.5, 1.0)))
READINGS = SETS["four"]
NAMES = [candidate.name for candidate in candidates_of(READINGS)]
PLAIN = len(candidates_of(READINGS, fused=False))
METHODS: dict[EvidenceKind, str] = {
    "all": "judge",
    "universe": "universe",
    "no-universe": "judge, no universe",
    "random-universe": "universe, random universe",
    "no-class-mask": "universe, no class mask",
}


def read(path: Path) -> Tables:
    values = dict(np.load(path))
    tables = {}
    for universe in UNIVERSES:
        own = {
            key.removeprefix(f"{universe} "): torch.from_numpy(value).float()
            for key, value in values.items()
            if key.startswith(f"{universe} ")
        }
        dice, hospital = own.pop("dice"), own.pop("hospital").long()
        tables[universe] = EvidenceTable(own, dice, hospital, PLAIN)
    return tables


def nested(folder: Path, model: str) -> list[Tables]:
    """Transfers of single-source models (of the same seed) between this model's own sources."""
    benchmark, rest = model.split("-from-")
    names, seed = rest.rsplit("-", 1)
    sources = names.split("_")
    pairs = [(a, b) for a in sources for b in sources if a != b]
    paths = [folder / f"{benchmark}-from-{a}-{seed}.to.{b}.4.npz" for a, b in pairs]
    return [read(path) for path in paths if path.exists()]


def verdicts(folder: Path, with_nested: bool) -> Iterator[tuple[str, EvidenceKind, Prediction, Tensor]]:
    """(model, kind, what was expected at a target, Dice of every candidate and region), in batches of 4."""
    for source in sorted(folder.glob("*.source.npz")):
        model = source.name.removesuffix(".source.npz")
        fitted = concatenated([read(source), *(nested(folder, model) if with_nested else ())])
        seed = int(model.rsplit("seed", 1)[1])
        for kind in get_args(EvidenceKind):
            x, dice, _ = inputs(fitted, kind)
            regressor = fit_regressor(x, dice, fitted["learned"].hospital, seed=seed)
            for path in sorted(folder.glob(f"{model}.to.*.4.npz")):
                x, dice, _ = inputs(read(path), kind)
                yield model, kind, regressor.predict(x), dice


def interval(gains: list[float]) -> str:
    """The mean over transfers, and 95 % of what other draws of transfers would give."""
    low, high = bootstrap([np.array([gain]) for gain in gains], resample_images=False, draws=10_000)
    return f"{np.mean(gains):+.2f} [{low:+.2f}, {high:+.2f}]"


def rules(folder: Path, with_nested: bool) -> None:
    """Gain over `source` by rule: mean over transfers with an interval that resamples them, and the worst."""
    fallback, gains = NAMES.index(FALLBACK), defaultdict(list)
    for model, kind, said, dice in verdicts(folder, with_nested):
        scores = dice.mean(2)
        for margin, doubt in RULES:
            chosen = choose(said.members, fallback, margin, doubt)
            gain = scores[torch.arange(len(scores)), chosen] - scores[:, 0]
            gains[model.split("-")[0], kind, margin, doubt].append(100 * float(gain.mean()))
    for benchmark in sorted({key[0] for key in gains}):
        print(f"\n**{benchmark}**\n")
        print(
            "| margin | doubt | judge | worst | universe | worst | − random universe | judge − no universe |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for margin, doubt in RULES:
            mine = {kind: gains[benchmark, kind, margin, doubt] for kind in METHODS}
            cells = []
            for kind in ("all", "universe"):
                cells += [interval(mine[kind]), f"{min(mine[kind]):+.1f}"]
            for a, b in (("universe", "random-universe"), ("all", "no-universe")):
                cells.append(interval([x - y for x, y in zip(mine[a], mine[b], strict=True)]))
            print(f"| {margin} | {doubt} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("evidence", type=Path)
    parser.add_argument("--nested", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rules(options.evidence, options.nested)


if __name__ == "__main__":
    main()
