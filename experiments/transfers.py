"""Gains over `source` by transfer, over all protocols of a benchmark, as Markdown.

    python experiments/transfers.py docs/records/polyp docs/records/fundus --only multi-source --only "single source"
    python experiments/transfers.py docs/records/learn-polyp docs/records/learn-fundus --stream folder --only "at home"

The input is packed records of `ttdg bench`; `--only` selects experiments of the run, by default all. A transfer is a
set of source sites and a target. Its gain is the mean over images, each averaged over training seeds. Intervals
resample transfers. Harm is the share of images that lose more than 5 Dice points. The last table compares the Dice that
a method predicts for its own answers with the true Dice: the share of the images inside their 80 % interval, the root
mean square over transfers and seeds of the error of the mean, and the share of the images with a Dice below 60 that are
among the first 20 % of their transfer in the order of the predicted Dice. Two options are for records that were made
before both became the default: `--between-sites D` adds the standard deviation D of the error of a whole site to the
intervals, and `--both-judges` averages the Dice that `universe` predicts with that of `judge` for the same image.
"""

import argparse
import io
import itertools
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import polars as pl
from transfer_predicted import print_predicted, print_predicted_by_transfer
from transfer_records import Benchmark, from_records

from ttdg.evaluation.statistics import bootstrap, harm
from ttdg.report.aggregate import dice_differences, transfer_differences
from ttdg.report.write import insert_tables

PAIRS = (
    ("universe-choice", "universe-choice, random universe"), ("judge", "judge, no universe"),
    ("universe-choice", "flip averaging"), ("judge", "flip averaging"), ("judge", "mean of all readings"),
    ("judge", "alpha-bn"),
    ("universe-choice", "universe-choice, no class mask"), ("universe-choice", "mean of all readings"),
    *(("universe-gradient", f"universe-gradient, {without}")
      for without in ("random universe", "no universe", "no class mask", "pairwise", "no consensus")),
    *(("universe", control) for control in ("self-training", "universe, random universe", "three sizes and flips")),
    *(("universe", f"universe, {form}")
      for form in ("labels not anchored", "600 steps", "600 steps of 8 images", "twice the rate", "anchored more")),
    ("universe, labels not anchored", "universe, labels not anchored, random universe"),
    ("self-training", "judge"),
)  # fmt: skip


def interval(gains: Sequence[float]) -> str:
    """Return the mean over transfers with a 95 % interval, which resamples transfers."""
    if len(gains) < 2:
        return "–"
    low, high = bootstrap([np.array([gain]) for gain in gains], resample_images=False, draws=10_000)
    return f"{np.mean(gains):+.2f} [{low:+.2f}, {high:+.2f}]"


def positive(gains: Sequence[float]) -> str:
    """Return at how many transfers there is a gain."""
    return f"{sum(gain > 0 for gain in gains)} of {len(gains)}"


def means(paired: pl.DataFrame, method: str) -> dict[str, float]:
    """Return the mean difference of a method to the baseline for each transfer."""
    return {t.name: float(t.differences.mean()) for t in transfer_differences(paired, method)}


def gains(paired: pl.DataFrame, name: str, batch: int) -> None:
    """Print the gains of all methods, best first."""
    print(f"\n**{name}, batch {batch}**\n")
    print(
        "| method | transfers × seeds | Δ Dice [95 %] | gains at | worst transfer | images harmed |\n"
        "|---|---|---|---|---|---|"
    )
    rows = []
    for method in paired["method"].unique(maintain_order=True):
        mine = means(paired, method)
        seeds = paired.filter(pl.col("method") == method)["seed"].n_unique()
        worst = min(mine, key=lambda transfer: mine[transfer])
        lost = 100 * harm(np.concatenate([t.by_seed for t in transfer_differences(paired, method)]), 5.0)
        change = list(mine.values())
        cells = [
            f"{len(mine)} × {seeds}",
            interval(change),
            positive(change),
            f"{mine[worst]:+.1f} ({worst})",
        ]
        rows.append((np.mean(list(mine.values())), f"| {method} | {' | '.join(cells)} | {lost:.1f} % |"))
    print("\n".join(row for _, row in sorted(rows, key=lambda row: -row[0])))


def compared(runs: dict[str, pl.DataFrame], batch: int) -> None:
    """Print the difference between the two methods of each pair in PAIRS, on the seeds that both have."""
    lines = [
        f"\n| difference, batch {batch} | {' | '.join(runs)} | all |",
        f"|---|{'---|' * (len(runs) + 1)}",
    ]
    for a, b in PAIRS:
        found = [[*means(dice_differences(images, b), a).values()] for images in runs.values()]
        if any(found):
            parts = [*found, [*itertools.chain(*found)]]
            cells = [f"{interval(part)}, {positive(part)}" for part in parts]
            lines.append(f"| {a} − {b} | {' | '.join(cells)} |")
    if len(lines) > 2:
        print("\n".join(lines))


def main() -> None:
    """Parse the command line and print the tables, or insert them into a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument(
        "--only", action="append", default=[], help="use only this experiment; may be repeated"
    )
    parser.add_argument("--stream", default="online", help="online (default) or folder")
    parser.add_argument("--seed", type=int, help="use only this training seed")
    parser.add_argument("--between-sites", type=float, default=0.0, metavar="D", help="in Dice, such as 0.1")
    parser.add_argument("--both-judges", action="store_true", help="average the predictions of both judges")
    parser.add_argument(
        "--each", action="store_true", help="print instead the Dice that `judge` predicts for each transfer"
    )
    parser.add_argument(
        "--into", type=Path, help="Markdown file to insert the tables into, between its two marks"
    )
    parser.add_argument(
        "--name", default="transfers", help="name in these marks: <!-- ttdg report NAME --> and its end"
    )
    options = parser.parse_args()
    benchmarks = {
        folder.name: from_records(
            folder, options.only, options.stream, options.between_sites, options.both_judges, options.seed
        )
        for folder in options.records
    }
    if options.each:
        print_predicted_by_transfer(benchmarks)
        return
    if options.into is None:
        tables(benchmarks)
        return
    with redirect_stdout(io.StringIO()) as text:
        tables(benchmarks)
    insert_tables(options.into, options.name, text.getvalue().strip() + "\n")


def tables(benchmarks: dict[str, Benchmark]) -> None:
    """Print all tables."""
    for batch in (4, 1):
        runs = {
            name: benchmark.images.filter(pl.col("batch") == batch) for name, benchmark in benchmarks.items()
        }
        for name, images in runs.items():
            paired = dice_differences(images, "source").filter(pl.col("method") != "source")
            if len(paired):
                gains(paired, name, batch)
        compared(runs, batch)
    print_predicted(benchmarks)


if __name__ == "__main__":
    main()
