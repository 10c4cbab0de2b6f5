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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from scipy.stats import spearmanr

from ttdg.bench.results import SETTING_COLUMNS, read_table, select_experiments
from ttdg.evaluation.statistics import bootstrap, harm
from ttdg.report.aggregate import (
    IMAGE_COLUMNS,
    dice_differences,
    image_dice,
    join_settings,
    transfer_differences,
)
from ttdg.report.write import insert_tables
from ttdg.safety.review import COVERED, FAILURE, failures_found

PAIRS = (
    ("universe-choice", "universe-choice, random universe"), ("judge", "judge, no universe"),
    ("universe-choice", "flip averaging"), ("judge", "flip averaging"), ("judge", "mean of all readings"),
    ("judge", "alpha-bn"),
    ("universe-choice", "universe-choice, no class mask"), ("universe-choice", "mean of all readings"),
    *(("universe-gradient", f"universe-gradient, {without}")
      for without in ("random universe", "no universe", "no class mask", "pairwise", "no consensus")),
    *(("universe", control) for control in ("self-training", "universe, random universe", "three sizes and flips")),
    ("self-training", "judge"),
)  # fmt: skip
EARLY = 0.2  # share of the images of a transfer that a reviewer looks at first
KEYS = [*SETTING_COLUMNS, *IMAGE_COLUMNS]


@dataclass(frozen=True)
class Benchmark:
    """Dice of every image, and the Dice that methods predict for their own answers.

    Attributes:
        images: Columns KEYS and dice, in percent.
        predicted: Columns KEYS, expected and half_width, for methods that predict their Dice.
    """

    images: pl.DataFrame
    predicted: pl.DataFrame


def from_records(
    folder: Path,
    experiments: Sequence[str],
    stream: str = "online",
    between: float = 0.0,
    both_judges: bool = False,
    seed: int | None = None,
) -> Benchmark:
    """Read one stream of the named experiments of a run; no names means all, and no seed all seeds.

    `between` is the standard deviation between sites that is added to the intervals. With `both_judges` the predicted
    Dice of `universe` is averaged with that of `judge`.
    """
    table = read_table(folder)
    table = select_experiments(table, experiments) if experiments else table
    metric = pl.col("metric").cast(pl.String)
    predicted = table.rows.with_columns(metric).filter(metric.is_in(["expected", "half_width"]))
    wide = predicted.pivot("metric", index=["job", *IMAGE_COLUMNS], values="value")
    if "half_width" in wide.columns:
        widened = (pl.col("half_width") ** 2 + (COVERED * between) ** 2).sqrt()
        wide = wide.with_columns(half_width=widened)
    here = pl.col("stream") == stream
    if seed is not None:
        here &= pl.col("seed").cast(pl.String) == str(seed)
    expected = join_settings(table, wide).filter(here)
    return Benchmark(image_dice(table).filter(here), average_judges(expected) if both_judges else expected)


def average_judges(predicted: pl.DataFrame) -> pl.DataFrame:
    """Average the predicted Dice and interval of `universe` with those of `judge`."""
    values, rows = ["expected", "half_width"], [key for key in KEYS if key != "method"]
    is_universe = pl.col("method") == "universe"
    judge = predicted.filter(pl.col("method") == "judge").select(*rows, *values)
    both = predicted.filter(is_universe).join(judge, on=rows, suffix="_judge")
    mean = both.with_columns((pl.col(value) + pl.col(f"{value}_judge")) / 2 for value in values)
    return pl.concat([predicted.filter(~is_universe), mean.select(predicted.columns)])


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


def predicted_dice(benchmark: Benchmark, name: str, batch: int) -> None:
    """Print how well the predicted Dice ranks images, and how many true values its intervals contain."""
    both = benchmark.predicted.join(benchmark.images, on=KEYS)
    for method in ("judge", "universe-choice", "universe"):
        mine = both.filter((pl.col("method") == method) & (pl.col("batch") == batch))
        if not len(mine):
            continue
        truth, inside = (mine["dice"] / 100).to_numpy(), _inside(mine)
        parts = [part for _, part in mine.group_by(["sources", "target", "seed"])]
        within = np.mean(np.nan_to_num([spearmanr(part["expected"], part["dice"])[0] for part in parts]))
        overall = spearmanr(mine["expected"], truth)[0]
        errors = [100 * part["expected"].to_numpy().mean() - part["dice"].to_numpy().mean() for part in parts]
        covered = np.mean([_inside(part).mean() for part in parts])
        cells = (f"{overall:.2f}", f"{within:.2f}", f"{100 * inside.mean():.0f} %", f"{100 * covered:.0f} %",
                 f"{np.sqrt(np.mean(np.square(errors))):.1f}", f"{early(parts):.0f} %")  # fmt: skip
        print(f"| {method} | {name} | {batch} | {' | '.join(cells)} |")


def _inside(part: pl.DataFrame) -> np.ndarray:
    """Return which true values are inside their interval."""
    return (
        np.abs(part["expected"].to_numpy() - part["dice"].to_numpy() / 100) <= part["half_width"].to_numpy()
    )


def early(parts: Sequence[pl.DataFrame]) -> float:
    """Return the percentage of all failures that are among the first images of their transfer."""
    found = [
        failures_found(part["dice"].to_numpy() / 100, -part["expected"].to_numpy(), FAILURE, (EARLY,))
        for part in parts
    ]
    failures = [int((part["dice"] < 100 * FAILURE).sum()) for part in parts]
    caught = sum(share[EARLY] * count for share, count in zip(found, failures, strict=True) if count)
    return 100 * caught / max(sum(failures), 1)


def predicted_by_transfer(benchmark: Benchmark, name: str) -> None:
    """Print predicted and true Dice of `judge` for each transfer at batch 4."""
    both = benchmark.predicted.join(benchmark.images, on=KEYS).filter(
        (pl.col("method") == "judge") & (pl.col("batch") == 4)
    )
    for (sources, target), mine in sorted(both.group_by(["sources", "target"]), key=lambda part: part[0]):
        covered = 100 * _inside(mine).mean()
        ranks = [spearmanr(part["expected"], part["dice"])[0] for _, part in mine.group_by("seed")]
        values = f"{100 * mine['expected'].mean():.1f} | {mine['dice'].mean():.1f}"
        print(
            f"| {name} | {sources} → {target} | {values} | {covered:.0f} % | {np.mean(np.nan_to_num(ranks)):.2f} |"
        )


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
        print(
            "| benchmark | transfer | expected Dice | Dice | covered | rank correlation |\n|---|---|---|---|---|---|"
        )
        for name, benchmark in benchmarks.items():
            predicted_by_transfer(benchmark, name)
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
    if all(benchmark.predicted.is_empty() for benchmark in benchmarks.values()):
        return
    print(
        "\n| method | benchmark | batch | rank correlation, all images | within a transfer | 80 % intervals cover "
        "| mean over transfers | error of a transfer's mean | failures in the first 20 % |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, benchmark in benchmarks.items():
        for batch in (4, 1):
            predicted_dice(benchmark, name, batch)


if __name__ == "__main__":
    main()
