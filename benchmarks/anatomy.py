"""Spread of sizes, share of boundary pixels and share of empty images, by which `universe` tells anatomies apart.

    python benchmarks/anatomy.py FOLDER [--benchmark NAME] [--images 200]

Measured on the labels. A site counts with at most `--images` images, spread over it.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from ttdg.adaptation.universe.anatomy import anatomy_of, measure_anatomy
from ttdg.data import find_sites, load_benchmark
from ttdg.data.loading import load_arrays


def main() -> None:
    """Print a line for each site, and one for each set of sites with one left out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--benchmark")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--size", type=int)
    chosen = parser.parse_args()
    benchmark = load_benchmark(chosen.benchmark, chosen.folder)
    benchmark = replace(benchmark, size=chosen.size or benchmark.size)
    masks = {}
    for name, site in find_sites(chosen.folder).items():
        rows = torch.linspace(0, len(site.cases) - 1, min(chosen.images, len(site.cases))).long().tolist()
        masks[name] = load_arrays([site.cases[row] for row in rows], benchmark).masks
    groups = {name: [name] for name in masks}
    groups |= {f"all but {name}": [other for other in masks if other != name] for name in masks}
    for name, sites in groups.items():
        labels = [masks[site] for site in sites]
        measured = ", ".join(
            f"{field} {value:.2f}" for field, value in measure_anatomy(labels)._asdict().items()
        )
        print(f"{name}: {measured}, {anatomy_of(labels)}")


if __name__ == "__main__":
    main()
