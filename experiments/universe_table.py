"""Tables of the universe study, as Markdown, from its records.

    python experiments/universe_table.py docs/results/universe-study.csv.gz

Gains are Dice points over `source` on the same images, the mean over transfers; intervals resample transfers; harm is
the share of images that lose more than 5 points.
"""

import csv
import gzip
import sys
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from scipy.stats import spearmanr

from ttdg.experiment.statistics import bootstrap

Transfer = tuple[str, str, str, str]  # benchmark, sources, target, seed
HARM = 0.05


def read(path: str) -> list[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.DictReader(file))


def by_image(rows: Iterable[dict[str, str]]) -> dict[tuple[str, str], dict[Transfer, dict[str, float]]]:
    """(method, batch) → transfer → image → Dice, the mean of its regions."""
    values: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in rows:
        transfer = (row["benchmark"], row["sources"], row["target"], row["seed"])
        values[row["method"], row["batch"]][transfer][row["case"]].append(float(row["dice"]))
    return {
        key: {t: {case: float(np.mean(d)) for case, d in images.items()} for t, images in transfers.items()}
        for key, transfers in values.items()
    }


def interval(gains: list[float]) -> str:
    """The mean over transfers, and 95 % of what other draws of transfers would give."""
    low, high = bootstrap([np.array([gain]) for gain in gains], resample_images=False, draws=10_000)
    return f"{np.mean(gains):+.2f} [{low:+.2f}, {high:+.2f}]"


def gain(images: dict[str, float], source: dict[str, float]) -> float:
    return 100 * float(np.mean([images[case] - source[case] for case in images]))


def method_table(found: dict, benchmark: str, batch: str) -> None:
    source = found["source", batch]
    print(f"\n**{benchmark}, batch {batch}**\n")
    print(
        "| method | transfers | Δ Dice [95 %] | leave-one-out only | worst transfer | harm |\n|---|---|---|---|---|---|"
    )
    rows = []
    for (method, size), transfers in found.items():
        mine = {t: images for t, images in transfers.items() if t[0] == benchmark}
        if size != batch or method == "source" or not mine:
            continue
        gains = {t: gain(images, source[t]) for t, images in mine.items()}
        several = [g for t, g in gains.items() if "+" in t[1]]
        lost = [images[case] - source[t][case] < -HARM for t, images in mine.items() for case in images]
        rows.append((np.mean(list(gains.values())), method, gains, several, np.mean(lost)))
    for _, method, gains, several, lost in sorted(rows, key=lambda row: -row[0]):
        cells = [
            str(len(gains)),
            interval(list(gains.values())),
            f"{np.mean(several):+.2f}" if several else "–",
        ]
        print(f"| {method} | {' | '.join(cells)} | {min(gains.values()):+.1f} | {100 * lost:.1f} % |")


def differences(found: dict, pairs: list[tuple[str, str]]) -> None:
    print("\n| difference | batch | polyp | fundus |\n|---|---|---|---|")
    for a, b in pairs:
        for batch in ("4", "1"):
            cells = []
            for benchmark in ("polyp", "fundus"):
                common = [
                    t
                    for t in found.get((a, batch), {})
                    if t[0] == benchmark and t in found.get((b, batch), {})
                ]
                gains = [gain(found[a, batch][t], found[b, batch][t]) for t in common]
                cells.append(interval(gains) if gains else "–")
            if cells != ["–", "–"]:
                print(f"| {a} − {b} | {batch} | {' | '.join(cells)} |")


def calibration(rows: list[dict[str, str]], found: dict) -> None:
    """Does the predicted Dice rank images, and do the 80 % intervals cover?"""
    print("\n| method | benchmark | batch | rank correlation in a transfer | 80 % intervals cover |")
    print("|---|---|---|---|---|")
    said: dict = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row["predicted"]:
            transfer = (row["benchmark"], row["sources"], row["target"], row["seed"])
            said[row["method"], row["batch"]][transfer][row["case"]] = (
                float(row["predicted"]),
                float(row["half_width"]),
            )
    for method in ("judge", "universe"):
        for benchmark in ("polyp", "fundus"):
            for batch in ("4", "1"):
                ranks, covers = [], []
                for transfer, images in said[method, batch].items():
                    if transfer[0] == benchmark:
                        truth = found[method, batch][transfer]
                        p, w, y = (
                            np.array(x) for x in zip(*((*images[c], truth[c]) for c in images), strict=True)
                        )
                        ranks.append(spearmanr(p, y)[0])
                        covers.append(np.mean(np.abs(p - y) <= w))
                if ranks:
                    rank, cover = np.nanmean(ranks), 100 * np.mean(covers)
                    print(f"| {method} | {benchmark} | {batch} | {rank:.2f} | {cover:.0f} % |")


def main(path: str) -> None:
    rows = read(path)
    found = by_image(rows)
    for benchmark in ("polyp", "fundus"):
        for batch in ("4", "1"):
            method_table(found, benchmark, batch)
    pairs = [
        ("universe", "universe, random universe"), ("judge", "judge, no universe"), ("universe", "flip averaging"),
        ("judge", "flip averaging"), ("judge", "alpha-bn"), ("universe-gradient", "universe-gradient, random universe"),
    ]  # fmt: skip
    differences(found, pairs)
    calibration(rows, found)


if __name__ == "__main__":
    main(sys.argv[1])
