"""The commands `ttdg prior`: `inspect`, and `carry`, whose code is in `ttdg.cli.models.carried`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttdg.cli.models.carried import carry_command
from ttdg.cli.options import (
    BenchmarkOption,
    DeviceOption,
    WorkersOption,
    choose_device,
    choose_sites,
    open_data,
    output_folder,
)
from ttdg.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from ttdg.prior import LiteralPrior, Nodes

app = typer.Typer(no_args_is_help=True, help="Inspect a morphology prior, and what it carries.")


@app.callback()
def prior_command() -> None:
    """Inspect a morphology prior."""


app.command("carry")(carry_command)


@app.command("inspect")
def inspect_command(
    model: Annotated[str, typer.Argument(help="Checkpoint folder with a prior, or [bold]demo[/bold].")],
    data: Annotated[Path, typer.Argument(help="Benchmark folder with masks.")],
    benchmark: BenchmarkOption = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--site", help="A site; repeat it for several. Default: all.", show_default=False),
    ] = None,
    images: Annotated[int, typer.Option(min=2, help="Images of each site, evenly spaced.")] = 12,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for prior.png and prior.json.",
            show_default=False,
            callback=output_folder,
        ),
    ] = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Measure the correspondences of a prior: class purity, points in use, distances, cycle violations.

    Nodes are taken by true labels and matched to the universe without using them. Two controls are measured as
    well: a random universe, and nearest neighbours in the network's own features.

    Example: [bold]ttdg prior inspect models/no-etis ~/data/polyp -b polyp -o inspection[/bold]
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from ttdg.adaptation import required_parts
    from ttdg.checkpoints import load
    from ttdg.data import load_arrays
    from ttdg.evaluation.site import benchmark_for_model
    from ttdg.files import write_text
    from ttdg.prior import LiteralPrior, MorphologyPrior, inspection, prior_from_part
    from ttdg.report.figures import atlas

    loaded = load(model, choose_device(device))
    (part,) = required_parts("prior inspect", ("prior",), loaded.parts)
    fitted = prior_from_part(part).to(next(loaded.network.parameters()).device)
    described, sites = open_data(data, benchmark)
    chosen = choose_sites(sites, names or list(sites))
    arrays = {
        name: load_arrays(_spaced(site.cases, images), benchmark_for_model(loaded.card, described), workers)
        for name, site in chosen.items()
    }
    if any(site.masks is None for site in arrays.values()):
        raise UserError("nodes are taken by true labels, so every site needs masks; choose sites with --site")
    image_nodes = inspection.collect_nodes(
        loaded.network, fitted, arrays, loaded.card.benchmark.normalisation
    )
    fitted = fitted.cpu()
    if isinstance(fitted, LiteralPrior):
        typer.echo(literal_findings(fitted, image_nodes.nodes))
        return
    assert isinstance(fitted, MorphologyPrior)
    findings = {
        name: asdict(measures) for name, measures in inspection.compare_universes(image_nodes, fitted).items()
    }
    by_site = inspection.purity_by_site(image_nodes, fitted)
    Console().print(findings_table(findings, len(fitted.universe)))
    new = {name: "" if name in loaded.card.sources else " (not a source)" for name in by_site}
    shown = ", ".join(f"{name}{new[name]} {100 * value:.1f}" for name, value in by_site.items())
    typer.echo(f"class purity by site: {shown}")
    if out is not None:
        values = {
            "model": loaded.card.sha256,
            "sources": list(loaded.card.sources),
            "images": len(image_nodes.sites),
            "findings": {name: _finite(measures) for name, measures in findings.items()},
            "purity": _finite(by_site),
        }
        write_text(out / "prior.json", json.dumps(values, indent=2, allow_nan=False) + "\n")
        classes = inspection.class_of_tissue(fitted, image_nodes.nodes.labels)
        points = inspection.match_ignoring_labels(fitted, image_nodes.nodes)
        path = atlas.draw_atlas(out / "prior.png", image_nodes, points, classes - 1, len(fitted.universe))
        typer.echo(f"{path} and {out / 'prior.json'} written")


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows no NaN: a value that is not defined, as for a single image, becomes null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def literal_findings(prior: "LiteralPrior", nodes: "Nodes") -> str:
    """Say how well 𝒰 of the paper's Algorithm 1 fits its own matching, and what that matching is."""
    from ttdg.prior.literal import universe_fit

    fit, found = universe_fit(prior, nodes), prior.hippi(nodes)
    U, d = found.matching, prior.spec.size
    return (
        f"Eq. 9 per node: {fit.start:.2g} at the start of training, {fit.trained:.2g} trained, {fit.best:.2g} at best\n"
        f"HiPPI: {found.iterations} iterations; largest entry of U {float(U.max()):.2g} (1/d = {1 / d:.2g}), "
        f"largest column sum {float(U.sum(1).max()):.2g} (at most 1 in a matching)"
    )


def findings_table(findings: dict[str, dict[str, Any]], size: int) -> "Table":
    """Return a table with a row for each measure and a column for each way of matching."""
    from rich.table import Table

    table = Table(
        caption="Purity and violations in %. Distance: mean distance of matched nodes in the structure's coordinates, "
        "divided by that of any two nodes of the same class; 1 means no correspondence.",
        caption_justify="left",
    )
    table.add_column("")
    for name in findings:
        table.add_column(name, justify="right")
    rows = {
        "nodes matched to a point of their class": ("purity", 100.0, ".1f"),
        "matched pairs of the same class": ("pair_purity", 100.0, ".1f"),
        f"points in use, of {size}": ("points_in_use", 1.0, ".0f"),
        "distance within sites": ("within_sites", 1.0, ".2f"),
        "distance across sites": ("across_sites", 1.0, ".2f"),
        "cycle violations": ("cycle_violations", 100.0, ".1f"),
    }
    for title, (key, unit, how) in rows.items():
        values = [measures[key] for measures in findings.values()]
        table.add_row(title, *("–" if value is None else format(unit * value, how) for value in values))
    return table


def _spaced(cases: Any, count: int) -> list[Any]:
    """Return `count` cases evenly spaced by name, as neighbouring images are often nearly equal."""
    if len(cases) <= count:
        return list(cases)
    return [cases[i * len(cases) // count] for i in range(count)]
