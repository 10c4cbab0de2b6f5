"""What every method gains and costs, as Markdown: one table of all, and one of the sites.

    python experiments/methods.py docs/records/polyp-methods docs/records/fundus-methods \\
        --costs docs/results/adapt-h200-methods.json --into docs/results.md

Gains over `source` with the same model, from packed records of `ttdg bench`: means over targets, intervals resample
them. Times and memory are of the method alone on the GPU with its default options, from `benchmarks/adapt.py`: recorded
where it can be, and then beside a recorded `source`, else both called from Python.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from transfers import from_records, interval, means

from ttdg.adaptation import METHODS
from ttdg.evaluation.statistics import harm
from ttdg.report.aggregate import by_transfer, differences
from ttdg.report.write import insert

BATCHES = (4, 1)


@dataclass(frozen=True)
class Found:
    """The Dice of `source` by batch and target, and each image's gain by method, target, seed and batch."""

    source: pl.DataFrame
    gains: pl.DataFrame


def read(folder: Path) -> Found:
    images = from_records(folder, []).images
    plain = images.filter(pl.col("method") == "source")
    once = plain.group_by("batch", "target", "case").agg(pl.col("dice").mean())  # as gains are
    source = once.group_by("batch", "target").agg(pl.col("dice").mean())
    gains = pl.concat(
        [differences(images.filter(pl.col("batch") == batch), "source") for batch in BATCHES]
    ).filter(pl.col("method") != "source")
    return Found(source.sort("target"), gains)


def overview(found: Mapping[str, Found], costs: Mapping[str, Any]) -> Iterator[str]:
    """`source` and its Dice, then all gains, best first: by the mean over benchmarks at the first batch size."""
    columns = [(name, batch) for name in found for batch in BATCHES]
    gains = [f"{name}, batch {batch}" for name, batch in columns]
    yield f"| method | {' | '.join(gains)} | images harmed, batch {BATCHES[0]} | ms/image | × `source` | peak MB |"
    yield f"|---|{'---|' * (len(gains) + 4)}"
    levels = [found[name].source.filter(pl.col("batch") == batch)["dice"].mean() for name, batch in columns]
    cells = [*(f"Dice {level:.1f}" for level in levels), "", *spent("source", costs)]
    yield f"| `source` | {' | '.join(cells)} |"
    rows = []
    for method in methods_of(found):
        parts = [
            found[name].gains.filter((pl.col("method") == method) & (pl.col("batch") == batch))
            for name, batch in columns
        ]
        each = [list(means(part, method).values()) for part in parts]
        first = parts[:: len(BATCHES)]
        lost = [harm(np.concatenate([t.by_seed for t in by_transfer(part, method)]), 5.0) for part in first]
        cells = [*map(interval, each), " / ".join(f"{100 * share:.0f} %" for share in lost)]
        order = np.mean([np.mean(gain) for gain in each[:: len(BATCHES)]])
        rows.append((order, f"| {label(method)} | {' | '.join([*cells, *spent(method, costs)])} |"))
    yield from (row for _, row in sorted(rows, key=lambda row: -row[0]))


def spent(method: str, costs: Mapping[str, Any]) -> tuple[str, str, str]:
    """ms an image, times `source` in the same turns, and peak memory. The host's speed changes while a table is made,
    so all ms are multiples of one `source`."""
    row, source = costs["methods"].get(method), costs["methods"]["source"]
    if row is None:
        return "–", "–", "–"
    way = "" if "ratio" in row else "eager_"
    ms = row[f"{way}ratio"] * source[f"{way}ms"] / costs["batch"]
    return f"{ms:.1f}", f"{row[f'{way}ratio']:.1f}", f"{row[f'{way}peak_mb']:.0f}"


def by_site(found: Mapping[str, Found]) -> Iterator[str]:
    """The Dice of `source` and the gains at each target, at the first batch size."""
    columns: dict[str, dict[str, float]] = {}
    levels = []
    for name, benchmark in found.items():
        gains = benchmark.gains.filter(pl.col("batch") == BATCHES[0])
        each = {method: means(gains, method) for method in methods_of(found)}
        for _, site, dice in benchmark.source.filter(pl.col("batch") == BATCHES[0]).iter_rows():
            levels.append(f"{dice:.1f}")
            columns[f"{name}: {site}"] = {method: gain[site] for method, gain in each.items()}
    yield f"| Δ Dice, batch {BATCHES[0]} | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    yield f"| `source`, Dice | {' | '.join(levels)} |"
    for method in sorted(methods_of(found), key=lambda name: -sum(gain[name] for gain in columns.values())):
        yield f"| {label(method)} | {' | '.join(f'{gain[method]:+.1f}' for gain in columns.values())} |"


def label(method: str) -> str:
    return f"`{method}`{' (reconstruction)' if METHODS[method].reconstructed else ''}"


def methods_of(found: Mapping[str, Found]) -> list[str]:
    return next(iter(found.values())).gains["method"].unique(maintain_order=True).to_list()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--costs", type=Path, required=True, help="what benchmarks/adapt.py wrote on a GPU")
    parser.add_argument("--into", type=Path, help="text to put the tables into, between its two marks")
    parser.add_argument(
        "--name", default="methods", help="of these marks: <!-- ttdg report NAME --> and its end"
    )
    options = parser.parse_args()
    found = {folder.name.removesuffix("-methods"): read(folder) for folder in options.records}
    costs = json.loads(options.costs.read_text(encoding="utf-8"))
    text = "\n".join([*overview(found, costs), "", *by_site(found)]) + "\n"
    if options.into is None:
        print(text)
    else:
        insert(options.into, options.name, text)


if __name__ == "__main__":
    main()
