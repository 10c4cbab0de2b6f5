"""Try judges of a learned site on saved evidence, without images or a GPU.

    python experiments/site_replay.py evidence [--seed 0] [--margin 0 0.02 0.05]

The evidence is that of `experiments/site_evidence.py`. For each model, a regressor is fitted to its simulated
hospitals, to transfers between its own source sites (learned by models of single sites and the same seed; several
sources only), or to both, and applied to the targets. No target takes part in its own fit. Rows: how the answer of an
image is chosen. Columns: gain in Dice over the answer that is not adapted (mean over transfers with its 95 % interval,
worst transfer), images that lose more than 5 Dice, and the rank correlation of the expected with the true gain of the
adapted answer within a site, with the means of both. Last, for each model: the error of the gain that is expected of a
whole simulated hospital, where that hospital was left out of the fit.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from ttdg.adaptation.judge.method import choose
from ttdg.adaptation.judge.regressor import feature_matrix
from ttdg.adaptation.universe.fit import SiteEvidence, fit_site_regressor, gain_error
from ttdg.adaptation.universe.site_judge import ADAPTED, CANDIDATES, UNADAPTED
from ttdg.evaluation.statistics import bootstrap

HARM = 5.0  # an image is harmed if it loses more Dice points than this


def read(path: Path) -> list[SiteEvidence]:
    """Read the evidence of a file, one entry for each hospital."""
    values = {name: torch.from_numpy(x) for name, x in np.load(path).items() if name != "cases"}
    signals = {name.removeprefix("signal "): x for name, x in values.items() if name.startswith("signal ")}
    return [
        SiteEvidence({name: x[:, rows] for name, x in signals.items()}, values["dice"][rows])
        for rows in (values["hospital"] == number for number in values["hospital"].unique())
    ]


def fits(folder: Path, model: str) -> Mapping[str, Sequence[SiteEvidence]]:
    """The evidence that a judge of this model may be fitted to, by name."""
    benchmark, rest = model.split("-from-")
    names, seed = rest.rsplit("-", 1)
    sources = names.split("_")
    paths = [folder / f"{benchmark}-from-{a}-{seed}.to.{b}.npz" for a in sources for b in sources if a != b]
    nested = [evidence for path in paths if path.exists() for evidence in read(path)]
    simulated = folder / f"{model}.simulated.npz"
    drawn = read(simulated) if simulated.exists() else []
    kinds = {
        "simulated hospitals": drawn,
        "source sites": nested,
        "both": drawn and nested and drawn + nested,
    }
    return {name: evidence for name, evidence in kinds.items() if len(evidence) > 1}


def transfers(folder: Path, seed: int) -> Iterator[tuple[str, str, SiteEvidence, Tensor | None]]:
    """Benchmark, kind of fit, evidence of a target, and Dice that the members expect of its candidates."""
    for path in sorted(folder.glob("*.to.*.npz")):
        model, _ = path.name.split(".to.")
        (target,) = read(path)
        benchmark = (
            f"{model.split('-from-')[0]}, {'several' if '_' in model else 'one'} source{'s' * ('_' in model)}"
        )
        yield benchmark, "", target, None
        for kind, evidence in fits(folder, model).items():
            names = list(target.signals)
            regressor = fit_site_regressor(evidence, names, seed)
            yield benchmark, kind, target, regressor.predict(feature_matrix(target.signals, names)).members


def summary(gains: Sequence[np.ndarray], expected: Sequence[tuple[np.ndarray, np.ndarray]]) -> str:
    """The cells of a row: `gains` of the images of every transfer, `expected` and true gains of the adapted answer."""
    means = [100 * float(gain.mean()) for gain in gains]
    low, high = bootstrap([np.array([mean]) for mean in means], resample_images=False, draws=10_000)
    harm = np.mean([100 * (gain < -HARM / 100).mean() for gain in gains])
    cells = [f"{np.mean(means):+.2f} [{low:+.2f}, {high:+.2f}]", f"{min(means):+.2f}", f"{harm:.1f} %"]
    if expected:
        ranks = np.nanmean([spearmanr(a, b).statistic for a, b in expected if np.ptp(a) and np.ptp(b)])
        said, true = (100 * np.mean([pair[i].mean() for pair in expected]) for i in (0, 1))
        cells += [f"{ranks:.2f}", f"{said:+.2f} for {true:+.2f}"]
    return " | ".join(cells + [""] * (5 - len(cells)))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("evidence", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--margin", type=float, nargs="+", default=[0.0, 0.02, 0.05])
    options = parser.parse_args()
    gains: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
    expected: dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    for benchmark, kind, target, members in transfers(options.evidence, options.seed):
        dice = target.dice.mean(2)
        over = (dice - dice[:, UNADAPTED, None]).numpy()
        if members is None:
            for number, name in enumerate(CANDIDATES):
                gains[benchmark, f"always {name}"].append(over[:, number])
            gains[benchmark, "best in hindsight"].append(over.max(1))
            continue
        gain = (members[..., ADAPTED] - members[..., UNADAPTED]).mean(0).numpy()
        for margin in options.margin:
            row = f"fitted to {kind}, margin {margin:g}"
            chosen = choose(members, ADAPTED, margin).numpy()
            gains[benchmark, row].append(over[np.arange(len(over)), chosen])
            expected[benchmark, row].append((gain, over[:, ADAPTED]))
    for benchmark in sorted({key[0] for key in gains}):
        print(f"\n**{benchmark}**\n\n| answer | gain | worst | harmed | rank | expected for true |")
        print("|---|---|---|---|---|---|")
        for key in (key for key in gains if key[0] == benchmark):
            print(f"| {key[1]} | {summary(gains[key], expected[key])} |")
    print("\n| model | error of the gain of a whole hospital, Dice |\n|---|---|")
    for path in sorted(options.evidence.glob("*.simulated.npz")):
        hospitals = read(path)
        error = 100 * gain_error(hospitals, list(hospitals[0].signals), options.seed)
        print(f"| {path.name.removesuffix('.simulated.npz')} | {error:.1f} |")


if __name__ == "__main__":
    main()
