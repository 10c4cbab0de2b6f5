"""The table that `benchmarks/adapt.py` prints."""

from typing import Any

from rich.console import Console
from rich.table import Table


def report(results: dict[str, Any]) -> None:
    """Print one row per method, then the other measurements."""
    table = Table(
        title=f"{results['device']}, {results['encoder']}, {results['size']}², batch {results['batch']}"
    )
    columns = {
        "ms/batch": ("ms", ".2f"), "× source": ("ratio", ".2f"), "peak MB": ("peak_mb", ".0f"),
        "× its passes": ("of_its_passes", ".2f"), "eager ms": ("eager_ms", ".2f"),
        "× source, eager": ("eager_ratio", ".2f"), "× its passes, eager": ("eager_of_its_passes", ".2f"),
        "peak MB, eager": ("eager_peak_mb", ".0f"),
    }  # fmt: skip
    for name in ("method", *columns, "site images/s", "site, eager"):
        table.add_column(name, justify="left" if name == "method" else "right")
    sites = [results.get(f"{way}site_images_per_second", {}) for way in ("", "eager_")]
    for name, row in results["methods"].items():
        cells = [f"{row[key]:{form}}" if key in row else "-" for key, form in columns.values()]
        cells += [f"{rates[name]:.0f}" if name in rates else "-" for rates in sites]
        table.add_row(name, *cells)
    console = Console(width=120)
    console.print(table)
    for name in (
        "training_step_peak_mb",
        "per_image_seconds",
        "training_images_per_second",
        "resident_growth_mb",
    ):
        if name in results:
            console.print(f"{name}: {results[name]}")
    if parts := results.get("per_image_seconds"):
        share = (parts["reading"] + parts["scoring"]) / parts["source"]
        console.print(f"reading + scoring: {share:.1%} of source's time")
