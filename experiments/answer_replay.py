"""Try rules that answer the images of learned sites, on saved maps, without images or a GPU.

    python experiments/site_evidence.py runs/learn-polyp --out evidence --maps 128 --hospitals 4
    python experiments/answer_replay.py evidence [--csv answers.csv]

Each rule combines the predictions of `experiments/candidate_maps.py`. Columns: mean gain in Dice over the source
network with its 95 % interval over sites, the worst site, images that lose more than 5 Dice, and the mean area of the
answers as a share of the source's area. Dice is measured on the maps, whose pixels are larger than those of the images.
Folders inside the evidence are other rows of the run.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ttdg.adaptation.universe.answer_rule import AGREEING
from ttdg.evaluation.statistics import bootstrap

Map = NDArray[np.float32]  # (images, regions, height, width)
Maps = dict[str, Map]
Rule = Callable[[Maps], Map]
HARM = 5.0  # an image is harmed if it loses more Dice points than this


@dataclass(frozen=True)
class Answers:
    """What a rule answers at a site, against the source network. Gains are in Dice points, shares in percent."""

    row: str
    benchmark: str
    sources: str
    site: str
    rule: str
    images: int
    source: float
    gain: float
    harmed: float
    area: float

    @property
    def group(self) -> str:
        """The sites over which a mean is taken."""
        kind = (
            "simulated"
            if self.site.startswith("simulated")
            else "from several"
            if "+" in self.sources
            else ""
        )
        return f"{self.row}: {self.benchmark}, {kind or 'from one'}"


def dice(a: Map, b: Map) -> Map:
    """Dice of each image, averaged over the regions, in percent; both at a threshold of one half."""
    x, y = a >= 0.5, b >= 0.5
    both, sizes = (x & y).sum((2, 3)), x.sum((2, 3)) + y.sum((2, 3))
    return (100 * np.where(sizes > 0, 2 * both / np.maximum(sizes, 1), 1.0)).mean(1).astype(np.float32)


def mean_of(*names: str) -> Rule:
    """The mean of some predictions."""
    return lambda maps: np.mean([maps[name] for name in names], axis=0)


def where_both_agree(*names: str) -> Rule:
    """The mean of some predictions where the judge and the adapted network agree, elsewhere the adapted prediction."""

    def answer(maps: Maps) -> Map:
        agree = dice(maps["judge"], maps["adapted"]) > 100 * AGREEING
        return np.where(agree[:, None, None, None], mean_of(*names)(maps), maps["adapted"])

    return answer


RULES: dict[str, Rule] = {
    "three sizes and flips": mean_of("sizes"),
    "judge": mean_of("judge"),
    "adapted": mean_of("adapted"),
    "where both agree: judge, adapted": where_both_agree("judge", "adapted"),
    "where both agree: sizes, adapted": where_both_agree("sizes", "adapted"),
    "where both agree: judge, sizes, adapted": where_both_agree("judge", "sizes", "adapted"),
}


def read(folder: Path) -> Iterator[tuple[tuple[str, str, str, str], Maps]]:
    """Row, benchmark, sources and site of every learned site, with its maps."""
    for path in sorted(folder.rglob("*.npz")):
        file = np.load(path)
        names = [name for name in file.files if name.startswith("map ")]
        maps = {name.removeprefix("map "): file[name].astype(np.float32) / 255 for name in names}
        model, site = path.stem.split(".", 1)
        benchmark, sources = model.rsplit("-seed", 1)[0].split("-from-")
        row = "universe" if path.parent == folder else path.parent.name
        for number in np.unique(file["hospital"]):
            rows = file["hospital"] == number
            name = site.removeprefix("to.") if site.startswith("to.") else f"{site} {number}"
            yield (row, benchmark, sources.replace("_", "+"), name), {key: x[rows] for key, x in maps.items()}


def answer(key: tuple[str, str, str, str], maps: Maps) -> Iterator[Answers]:
    """Apply every rule to a site."""
    base, area = dice(maps["source"], maps["truth"]), float((maps["source"] >= 0.5).mean())
    for name, rule in RULES.items():
        answers = rule(maps)
        gain = dice(answers, maps["truth"]) - base
        harmed, size = 100 * (gain < -HARM).mean(), (answers >= 0.5).mean() / max(area, 1e-6)
        numbers = (round(float(x), 3) for x in (base.mean(), gain.mean(), harmed, size))
        yield Answers(*key, name, len(base), *numbers)


def print_group(group: str, found: Sequence[Answers]) -> None:
    """Print the table of a group of sites."""
    by_rule: dict[str, list[Answers]] = defaultdict(list)
    for one in found:
        by_rule[one.rule].append(one)
    print(f"\n**{group}**, {len(found) // len(by_rule)} sites\n\n| answer | gain | worst | harmed | area |")
    print("|---|---|---|---|---|")
    for rule, sites in by_rule.items():
        gains = [site.gain for site in sites]
        low, high = bootstrap([np.array([gain]) for gain in gains], resample_images=False, draws=10_000)
        harm, area = (np.mean([getattr(site, name) for site in sites]) for name in ("harmed", "area"))
        cells = (
            rule,
            f"{np.mean(gains):+.2f} [{low:+.2f}, {high:+.2f}]",
            f"{min(gains):+.2f}",
            f"{harm:.1f} %",
        )
        print(f"| {' | '.join(cells)} | {area:.2f} |")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("evidence", type=Path)
    parser.add_argument("--csv", type=Path, help="also write one line for each site and rule")
    options = parser.parse_args()
    found = [one for key, maps in read(options.evidence) for one in answer(key, maps)]
    for group in dict.fromkeys(one.group for one in found):
        print_group(group, [one for one in found if one.group == group])
    if options.csv:
        with options.csv.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(field.name for field in fields(Answers))
            writer.writerows(astuple(one) for one in found)


if __name__ == "__main__":
    main()
