"""ttdg prior: look at what a morphology prior has learned."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttdg.cli.options import (
    BenchmarkOption,
    DeviceOption,
    WorkersOption,
    choose_device,
    choose_sites,
    open_data,
)
from ttdg.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="Look at what a morphology prior has learned.")


@app.callback()
def prior_command() -> None:
    """Look at what a morphology prior has learned."""


@app.command("inspect")
def inspect_command(
    model: Annotated[str, typer.Argument(help="Checkpoint folder with a prior, or [bold]demo[/bold].")],
    data: Annotated[Path, typer.Argument(help="Benchmark folder with masks.")],
    benchmark: BenchmarkOption = None,
    site: Annotated[
        list[str] | None, typer.Option(help="Site; several times. Default: all.", show_default=False)
    ] = None,
    images: Annotated[int, typer.Option(min=2, help="Images of each site, evenly spaced.")] = 12,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for prior.png and prior.json.", show_default=False),
    ] = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Measure a prior: class purity, points in use, the same place in every image, cycles; against two controls.

    Nodes are taken by true labels and matched freely to the universe. The controls: a random universe, and nearest
    neighbours in the network's own features.

    Example: [bold]ttdg prior inspect models/no-etis ~/data/polyp -b polyp -o inspection[/bold]
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from ttdg.checkpoints import load, required_parts
    from ttdg.data import load_arrays
    from ttdg.evaluation.site import benchmark_for_model
    from ttdg.files import write_text
    from ttdg.prior import MorphologyPrior, inspection
    from ttdg.report.figures import atlas

    loaded = load(model, choose_device(device))
    (part,) = required_parts("prior inspect", ("prior",), loaded.parts)
    learned = MorphologyPrior.from_part(part).to(next(loaded.network.parameters()).device)
    described, sites = open_data(data, benchmark)
    chosen = choose_sites(sites, site or list(sites))
    arrays = {
        name: load_arrays(_spaced(each.cases, images), benchmark_for_model(loaded.card, described), workers)
        for name, each in chosen.items()
    }
    if any(each.masks is None for each in arrays.values()):
        raise UserError(
            "nodes are taken by true labels, so every site needs masks; choose others with --site"
        )
    seen = inspection.collect_nodes(loaded.network, learned, arrays, loaded.card.benchmark.normalisation)
    learned = learned.cpu()
    found, by_site = inspection.compare_universes(seen, learned), inspection.purity_by_site(seen, learned)
    Console().print(
        findings_table({name: asdict(each) for name, each in found.items()}, len(learned.universe))
    )
    new = {name: "" if name in loaded.card.sources else " (not a source)" for name in by_site}
    shown = ", ".join(f"{name}{new[name]} {100 * value:.1f}" for name, value in by_site.items())
    typer.echo(f"class purity by site: {shown}")
    if out is not None:
        about = {"model": loaded.card.sha256, "sources": list(loaded.card.sources), "images": len(seen.sites)}
        values = {
            **about,
            "findings": {name: asdict(each) for name, each in found.items()},
            "purity": by_site,
        }
        write_text(out / "prior.json", json.dumps(values, indent=2) + "\n")
        classes = inspection.classes_of(learned, seen.nodes.labels)
        points = inspection.free_points(learned, seen.nodes)
        path = atlas.draw_atlas(out / "prior.png", seen, points, classes - 1, len(learned.universe))
        typer.echo(f"{path} and {out / 'prior.json'} written")


def findings_table(found: dict[str, dict[str, Any]], size: int) -> "Table":
    """A row for each measure, a column for each way of matching."""
    from rich.table import Table

    table = Table(
        caption="Purity and violations in %. Distance: of matched nodes of a structure, in its own coordinates, over "
        "that of any two nodes of its class; 1 is no correspondence.",
        caption_justify="left",
    )
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    rows = {
        "class of a node's point is its own": ("purity", 100.0, ".1f"),
        "matched pairs of one class": ("pair_purity", 100.0, ".1f"),
        f"points in use, of {size}": ("points_in_use", 1.0, ".0f"),
        "distance within sites": ("within_sites", 1.0, ".2f"),
        "distance across sites": ("across_sites", 1.0, ".2f"),
        "cycle violations": ("cycle_violations", 100.0, ".1f"),
    }
    for title, (key, unit, how) in rows.items():
        values = [each[key] for each in found.values()]
        table.add_row(title, *("–" if value is None else format(unit * value, how) for value in values))
    return table


def _spaced(cases: Any, count: int) -> list[Any]:
    """Evenly spaced by name: neighbours are often near-twins."""
    if len(cases) <= count:
        return list(cases)
    return [cases[i * len(cases) // count] for i in range(count)]
