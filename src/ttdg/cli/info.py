"""The command `ttdg info`."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ttdg.types import Part


def info_command(
    model: Annotated[
        str | None, typer.Argument(help="Checkpoint folder, or demo.", show_default=False)
    ] = None,
) -> None:
    """Describe a checkpoint, its training data and its scores; without one, describe the installation.

    Example: [bold]ttdg info demo[/bold]
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    rows = describe_installation() if model is None else describe_checkpoint(model)
    console = Console()
    if not console.is_terminal:  # a pipe has no width; a row is a line
        width = max(map(len, rows))
        for name, value in rows.items():
            typer.echo(f"{name:<{width}}  {value}")
        return
    table = Table(show_header=False, box=None)
    table.add_column()
    table.add_column(overflow="fold")  # long words continue in the next line
    for name, value in rows.items():
        table.add_row(f"[bold]{escape(name)}[/bold]", escape(value))
    console.print(table)


def describe_checkpoint(path: str) -> dict[str, str]:
    """Return the rows of the table about a checkpoint."""
    from ttdg.checkpoints import load

    model = load(path)
    card = model.card
    benchmark, recipe = card.benchmark, card.recipe
    return {
        "benchmark": f"{benchmark.name}: labels {', '.join(benchmark.labels)}; {benchmark.size}×{benchmark.size}",
        "regions": "; ".join(
            f"{region} = {'+'.join(benchmark.labels[i] for i in labels)}"
            for region, labels in benchmark.regions.items()
        ),
        "normalisation": str(benchmark.normalisation),
        "network": f"U-Net, {card.network.encoder} encoder, {card.network.channels} channels",
        "parts": ", ".join(map(_part, model.parts, model.parts.values())) or "none",
        "sources": "; ".join(
            f"{site}: {values.get('cases', 'unknown')} cases" for site, values in card.sources.items()
        ),
        "validation Dice": "; ".join(
            f"{region} {100 * score:.1f}" for region, score in card.validation.items()
        ),
        "recipe": ", ".join(f"{name} {value}" for name, value in recipe.items()),
        "versions": ", ".join(f"{name} {value}" for name, value in card.versions.items()),
        "sha256": card.sha256,
    }


def _part(name: str, part: "Part") -> str:
    from ttdg.checkpoints import fit_description

    fit = fit_description(part)
    return f"{name} ({fit})" if fit else name


def describe_installation() -> dict[str, str]:
    """Return the rows of the table about the installation."""
    import torch

    from ttdg.adaptation import METHODS
    from ttdg.checkpoints import versions
    from ttdg.data import builtin_benchmarks

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "versions": ", ".join(f"{name} {value}" for name, value in versions().items()),
        "GPU": gpu,
        "methods": ", ".join(METHODS),
        "benchmarks": ", ".join(builtin_benchmarks()),
        "models": "demo",
    }
