"""Other judges on the evidence a universe study kept: `python experiments/judge_replay.py results/evidence [--nested]`.

Fits a regressor for each model and kind of evidence, and gives for several rules (margin, doubt) the gain over
`source`, the mean over transfers with an interval that resamples them, and the worst transfer. No GPU, no images.
With --nested, a model of several sources also learns from what single-source models did between those sources: real
shifts, and still no target.
"""

import sys
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ttdg.adapt.candidates import candidates_of
from ttdg.adapt.judge import FALLBACK, choose
from ttdg.adapt.judge_fit import Table, evidence_names, joined
from ttdg.adapt.regressor import features, fit_regressor
from ttdg.experiment.statistics import bootstrap

RULES = list(product((0.02, 0.05, 0.1), (0.0, 0.5, 1.0)))
NAMES = [candidate.name for candidate in candidates_of()]


def read(path: Path) -> Table:
    values = {key: torch.from_numpy(value).float() for key, value in np.load(path).items()}
    parts = [
        {k.removeprefix(p): v for k, v in values.items() if k.startswith(p)} for p in ("signal ", "random ")
    ]
    return Table(*parts, values["dice"])


def inputs(table: Table, kind: str) -> Tensor:
    found = {**table.signals, **table.random} if kind == "random-universe" else table.signals
    return features(found, evidence_names(table)[kind])


def nested(folder: Path, model: str) -> list[Table]:
    """Transfers of single-source models (of the same seed) between this model's own sources."""
    benchmark, rest = model.split("-from-")
    names, seed = rest.rsplit("-", 1)
    sources = names.split("_")
    pairs = [(a, b) for a in sources for b in sources if a != b]
    paths = [folder / f"{benchmark}-from-{a}-{seed}.to.{b}.npz" for a, b in pairs]
    return [read(path) for path in paths if path.exists()]


def interval(gains: list[float]) -> str:
    """The mean over transfers, and 95 % of what other draws of transfers would give."""
    low, high = bootstrap([np.array([gain]) for gain in gains], resample_images=False, draws=10_000)
    return f"{np.mean(gains):+.2f} [{low:+.2f}, {high:+.2f}]"


def main(folder: Path, with_nested: bool) -> None:
    torch.set_num_threads(1)
    fallback, gains = NAMES.index(FALLBACK), defaultdict(list)
    for source in sorted(folder.glob("*.source.npz")):
        model = source.name.removesuffix(".source.npz")
        fitted = joined([read(source), *(nested(folder, model) if with_nested else ())])
        for kind in evidence_names(fitted):
            regressor = fit_regressor(inputs(fitted, kind), fitted.dice)
            for target in sorted(folder.glob(f"{model}.to.*.npz")):
                table = read(target)
                predicted, dice = regressor.predict(inputs(table, kind)), table.dice.mean(2)
                for margin, doubt in RULES:
                    chosen = choose(predicted.members, fallback, margin, doubt)
                    gain = dice[torch.arange(len(dice)), chosen] - dice[:, 0]
                    gains[model.split("-")[0], kind, margin, doubt].append(100 * float(gain.mean()))
    for benchmark in sorted({key[0] for key in gains}):
        print(f"\n**{benchmark}**\n")
        print(
            "| margin | doubt | judge | worst | universe | worst | − random universe | judge − no universe |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for margin, doubt in RULES:
            mine = {
                kind: gains[benchmark, kind, margin, doubt]
                for kind in ("all", "universe", "random-universe", "no-universe")
            }
            cells = [
                interval(mine["all"]),
                f"{min(mine['all']):+.1f}",
                interval(mine["universe"]),
                f"{min(mine['universe']):+.1f}",
            ]
            for a, b in (("universe", "random-universe"), ("all", "no-universe")):
                cells.append(interval([x - y for x, y in zip(mine[a], mine[b], strict=True)]))
            print(f"| {margin} | {doubt} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--nested" in sys.argv)
