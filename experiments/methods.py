"""Gain and cost of every method, as Markdown: an overview table, and a table by site.

    python experiments/methods.py docs/records/polyp-methods docs/records/fundus-methods \\
        --costs docs/results/adapt-h200-methods.json

Gains over `source` with the same model come from packed records of `ttdg bench`: means over targets, with intervals
that resample targets, and seeds within each. Rows are grouped by what a method needs of the source besides the network;
"post hoc" marks methods whose paper trains their parts together with the network. Time and memory come from
`benchmarks/adapt.py`: the method alone on the GPU with its default options. Methods that support CUDA graphs are timed
with them, and so is the `source` they are compared with; other methods and their `source` are called from Python.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from transfer_records import from_records
from transfers import means

from ttdg.adaptation import METHODS
from ttdg.evaluation.statistics import bootstrap_transfers_and_seeds, harm
from ttdg.report.access import ACCESS
from ttdg.report.aggregate import TransferDifferences, dice_differences, transfer_differences
from ttdg.report.write import insert_tables

BATCHES = (4, 1)


@dataclass(frozen=True)
class BenchmarkGains:
    """Dice of `source` by batch and target, and the gain of each image by method, target, seed and batch."""

    source: pl.DataFrame
    gains: pl.DataFrame


def read(folder: Path) -> BenchmarkGains:
    """Read the packed records of a run."""
    images = from_records(folder, []).images
    plain = images.filter(pl.col("method") == "source")
    once = plain.group_by("batch", "target", "case").agg(
        pl.col("dice").mean()
    )  # average over seeds, as for gains
    source = once.group_by("batch", "target").agg(pl.col("dice").mean())
    gains = pl.concat(
        [dice_differences(images.filter(pl.col("batch") == batch), "source") for batch in BATCHES]
    ).filter(pl.col("method") != "source")
    return BenchmarkGains(source.sort("target"), gains)


def overview(benchmarks: Mapping[str, BenchmarkGains], costs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the overview: `source`, then all methods by mean gain at the first batch size."""
    columns = [(name, batch) for name in benchmarks for batch in BATCHES]
    gains = [f"{name}, batch {batch}" for name, batch in columns]
    harmed = f"images harmed, batch {BATCHES[0]}"
    yield f"| method | access | {' | '.join(gains)} | {harmed} | ms/image | × `source` | peak MB |"
    yield f"|---|---|{'---|' * (len(gains) + 4)}"
    levels = [
        benchmarks[name].source.filter(pl.col("batch") == batch)["dice"].mean() for name, batch in columns
    ]
    cells = [*(f"Dice {level:.1f}" for level in levels), "", *spent("source", costs)]
    yield f"| `source` | {METHODS['source'].access} | {' | '.join(cells)} |"
    rows = []
    for method in methods_of(benchmarks):
        parts = [
            benchmarks[name].gains.filter((pl.col("method") == method) & (pl.col("batch") == batch))
            for name, batch in columns
        ]
        by_column = [transfer_differences(part, method) for part in parts]
        first = parts[:: len(BATCHES)]
        lost = [
            harm(np.concatenate([t.by_seed for t in transfer_differences(part, method)]), 5.0)
            for part in first
        ]
        cells = [*map(seeded_interval, by_column), " / ".join(f"{100 * share:.0f} %" for share in lost)]
        order = np.mean([t.differences.mean() for column in by_column[:: len(BATCHES)] for t in column])
        access = METHODS[method].access
        line = " | ".join([label(method), access, *cells, *spent(method, costs)])
        rows.append((ACCESS.index(access), -order, f"| {line} |"))
    yield from (row for *_, row in sorted(rows))


def seeded_interval(transfers: Sequence[TransferDifferences]) -> str:
    """Return the mean over transfers with a 95 % interval, which resamples transfers and seeds."""
    if len(transfers) < 2:
        return "–"
    low, high = bootstrap_transfers_and_seeds([t.seed_means for t in transfers], draws=10_000)
    return f"{np.mean([t.differences.mean() for t in transfers]):+.2f} [{low:+.2f}, {high:+.2f}]"


def spent(method: str, costs: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return milliseconds per image, time relative to `source`, and peak memory in MB.

    The speed of the host varies between measurements, so milliseconds are the ratio to `source`, measured in the same
    turns, times one common time of `source`.
    """
    row, source = costs["methods"].get(method), costs["methods"]["source"]
    if row is None:
        return "–", "–", "–"
    prefix = "" if "ratio" in row else "eager_"
    ms = row[f"{prefix}ratio"] * source[f"{prefix}ms"] / costs["batch"]
    return f"{ms:.1f}", f"{row[f'{prefix}ratio']:.1f}", f"{row[f'{prefix}peak_mb']:.0f}"


def by_site(benchmarks: Mapping[str, BenchmarkGains]) -> Iterator[str]:
    """Yield the lines of the table by site: Dice of `source` and gains at the first batch size."""
    columns: dict[str, dict[str, float]] = {}
    levels = []
    for name, benchmark in benchmarks.items():
        gains = benchmark.gains.filter(pl.col("batch") == BATCHES[0])
        by_method = {method: means(gains, method) for method in methods_of(benchmarks)}
        for _, site, dice in benchmark.source.filter(pl.col("batch") == BATCHES[0]).iter_rows():
            levels.append(f"{dice:.1f}")
            columns[f"{name}: {site}"] = {method: gain[site] for method, gain in by_method.items()}
    yield f"| Δ Dice, batch {BATCHES[0]} | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    yield f"| `source`, Dice | {' | '.join(levels)} |"
    for method in sorted(
        methods_of(benchmarks), key=lambda name: -sum(gain[name] for gain in columns.values())
    ):
        yield f"| {label(method)} | {' | '.join(f'{gain[method]:+.1f}' for gain in columns.values())} |"


def label(method: str) -> str:
    """Return the method's name for a table, with a note if it is a reconstruction or fitted post hoc."""
    marks = {"post hoc": METHODS[method].post_hoc, "reconstruction": METHODS[method].reconstructed}
    words = ", ".join(word for word, holds in marks.items() if holds)
    return f"`{method}`{f' ({words})' if words else ''}"


def methods_of(benchmarks: Mapping[str, BenchmarkGains]) -> list[str]:
    return next(iter(benchmarks.values())).gains["method"].unique(maintain_order=True).to_list()


def main() -> None:
    """Parse the command line and print the tables, or insert them into a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--costs", type=Path, required=True, help="output of benchmarks/adapt.py on a GPU")
    parser.add_argument(
        "--into", type=Path, help="Markdown file to insert the tables into, between its two marks"
    )
    parser.add_argument(
        "--name", default="methods", help="name in these marks: <!-- ttdg report NAME --> and its end"
    )
    options = parser.parse_args()
    benchmarks = {folder.name.removesuffix("-methods"): read(folder) for folder in options.records}
    costs = json.loads(options.costs.read_text(encoding="utf-8"))
    text = "\n".join([*overview(benchmarks, costs), "", *by_site(benchmarks)]) + "\n"
    if options.into is None:
        print(text)
    else:
        insert_tables(options.into, options.name, text)


if __name__ == "__main__":
    main()
