"""Finding the folder of a benchmark on disk, and summarising its data."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttdg.data.benchmark import Benchmark
from ttdg.data.fingerprints import fingerprint, table_hash
from ttdg.data.sites import Site
from ttdg.errors import UserError

DATA_VARIABLE = "TTDG_DATA"  # environment variable that names the default data folder


def find_benchmark_folder(root: Path | None, benchmark: str | None) -> Path:
    """Return the folder that holds the sites of a benchmark.

    Args:
        root: The benchmark folder, or a folder of benchmarks. None stands for the folder that the
            environment variable TTDG_DATA names.
        benchmark: Name of the benchmark. `root/benchmark` is returned if it is a folder and `root` is not
            itself a benchmark folder, that is, has no `benchmark.yaml`.

    Raises:
        UserError: No folder was named, or it does not exist.
    """
    if root is None:
        default = os.environ.get(DATA_VARIABLE)
        if not default:
            raise UserError(f"no benchmark folder was named; name one, or set {DATA_VARIABLE} to a folder")
        root = Path(default)
    if not root.is_dir():
        raise UserError(f"no folder at {root}; name an existing benchmark folder")
    if benchmark and not (root / "benchmark.yaml").exists() and (root / benchmark).is_dir():
        return root / benchmark
    return root


@dataclass(frozen=True)
class DataSummary:
    """The facts about the data of a benchmark that the results of jobs depend on."""

    benchmark: Mapping[str, Any]  # its description, as in its yaml file
    sites: Mapping[str, Site]
    fingerprints: Mapping[str, str]  # site → fingerprint of its files

    def tables(self) -> dict[str, str]:
        """Return "site, fingerprint" → hash of the patients, splits and voxel sizes of its cases."""
        return {
            f"{name}, {self.fingerprints[name]}": table_hash(site.cases) for name, site in self.sites.items()
        }


def summarise_data(benchmark: Benchmark, sites: Mapping[str, Site]) -> DataSummary:
    """Return the description of the benchmark and the fingerprint of every site."""
    fingerprints = {name: fingerprint(site.cases) for name, site in sites.items()}
    return DataSummary(benchmark.to_dict(), sites, fingerprints)
