"""How well methods predict the Dice of their own answers: ranks, intervals, and failures that are found early."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from scipy.stats import spearmanr
from transfer_records import KEYS, Benchmark

from ttdg.safety.review import FAILURE, failures_found

EARLY = 0.2  # share of the images of a transfer that a reviewer looks at first


def print_predicted(benchmarks: Mapping[str, Benchmark]) -> None:
    """Print a table of all methods that predict their Dice; nothing if none does."""
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


def print_predicted_by_transfer(benchmarks: Mapping[str, Benchmark]) -> None:
    """Print a table of the Dice that `judge` predicts for each transfer at batch 4."""
    print(
        "| benchmark | transfer | expected Dice | Dice | covered | rank correlation |\n|---|---|---|---|---|---|"
    )
    for name, benchmark in benchmarks.items():
        predicted_by_transfer(benchmark, name)


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
