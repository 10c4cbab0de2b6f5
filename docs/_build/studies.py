"""Tables from the CSV and JSON files in `docs/results`."""

import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from methods_page import table
from ttdg.adaptation import METHODS

RESULTS = Path(__file__).parents[1] / "results"
SCORES = {"dice": "Dice", "alignment": "E_φ^max", "structure": "S_α"}


def rows_of(name: str) -> list[dict[str, str]]:
    """The lines of a CSV file."""
    with (RESULTS / name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def first_study() -> str:
    """Leave one site out with `source`, `norm`, `alpha-bn` and `tent`: three scores, and fundus by region."""
    rows = rows_of("leave-one-out.csv")
    parts = []
    for benchmark in ("polyp", "fundus"):
        mine = [row for row in rows if row["benchmark"] == benchmark]
        parts += [_seeds_table(mine, score, f"{benchmark}: {title}") for score, title in SCORES.items()]
        regions = list(dict.fromkeys(row["region"] for row in mine))
        for region in regions if len(regions) > 1 else []:
            part = [row for row in mine if row["region"] == region]
            parts.append(_seeds_table(part, "dice", f"{benchmark}: Dice of {region}"))
    return "\n\n".join(parts)


def _seeds_table(rows: Sequence[dict[str, str]], score: str, title: str) -> str:
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        values[row["method"], row["target"]][row["seed"]].append(float(row[score]))
    targets = sorted({target for _, target in values})
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        by_seed = [
            {seed: statistics.mean(found) for seed, found in values[method, target].items()}
            for target in targets
        ]
        mean = {seed: statistics.mean(scores[seed] for scores in by_seed) for seed in by_seed[0]}
        lines.append((method, *(_spread(scores.values()) for scores in (*by_seed, mean))))
    return f"### {title}\n\n" + table(("method", *targets, "mean"), lines)


def _spread(values: Iterable[float]) -> str:
    found = list(values)
    return f"{statistics.mean(found):.1f} ± {statistics.stdev(found):.1f}"


def recipe_pilot() -> str:
    """Scores of five training recipes on held-out source images, in percent."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows_of("recipe-pilot.csv"):
        for region in ("polyp", "disc", "cup"):
            if value := row[f"source validation {region}"]:
                found[row["recipe"]][region] = f"{100 * float(value):.1f}"
    order = sorted(found, key=lambda recipe: float(found[recipe]["polyp"]))
    lines = [(recipe, *(found[recipe][region] for region in ("polyp", "disc", "cup"))) for recipe in order]
    return table(("recipe", "polyp without etis", "fundus without drishti: disc", "cup"), lines)


def source_recipes() -> str:
    """Nested leave-one-site-out: mean Dice at left-out source sites, for each recipe of the source model."""
    found: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of("source-recipes.csv"):
        found[row["recipe"], int(row["steps"])][row["benchmark"]].append(float(row["dice"]))
    complete = {
        benchmark: max(len(by[benchmark]) for by in found.values()) for benchmark in ("polyp", "fundus")
    }
    lines = []
    for (recipe, steps), by in sorted(found.items(), key=lambda item: (item[0][1], item[0][0] != "standard")):
        if all(len(by[benchmark]) == count for benchmark, count in complete.items()):
            lines.append(
                (recipe, str(steps), *(f"{statistics.mean(by[benchmark]):.2f}" for benchmark in complete))
            )
    return table(("augmentation", "steps", *(f"{b} ({n} scores)" for b, n in complete.items())), lines)


def drawn_hospitals() -> str:
    """Dice at each synthetic hospital, by a model that was trained at the other four; regions are averaged."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of("synthetic-leave-one-out.csv"):
        found[row["benchmark"], row["target"]][row["method"]].append(float(row["dice"]))
    methods = ("source", "norm", "alpha-bn", "tent")
    lines = [
        (
            benchmark.removeprefix("synthetic-"),
            target,
            *(f"{statistics.mean(scores[m]):.1f}" for m in methods),
        )
        for (benchmark, target), scores in sorted(found.items())
    ]
    return table(("variant", "left out", *(f"`{m}`" for m in methods)), lines)


def speed() -> str:
    """Time and memory of every method on one GPU: replayed as a CUDA graph where possible, and eager."""
    costs = json.loads((RESULTS / "adapt-h200-methods.json").read_text(encoding="utf-8"))["methods"]
    header = ("method", "ms per batch", "× `source`", "of its passes", "peak MB", "eager: ms", "× `source`",
              "of its passes")  # fmt: skip
    return table(header, [(_label(name), *_cost(row)) for name, row in costs.items()])


def _label(method: str) -> str:
    return f"`{method}`" + (" (reconstruction)" if METHODS[method].reconstructed else "")


def _cost(row: dict[str, Any]) -> list[str]:
    def cell(name: str, digits: int) -> str:
        return f"{row[name]:.{digits}f}" if name in row else ""

    peak = cell("peak_mb" if "peak_mb" in row else "eager_peak_mb", 0)
    graph = [cell("ms", 1), cell("ratio", 2), cell("of_its_passes", 2), peak]
    return [*graph, cell("eager_ms", 1), cell("eager_ratio", 2), cell("eager_of_its_passes", 2)]
