"""The command `ttdg fit-fingerprint`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ttdg.cli.models.fit import (
    AgainOption,
    ModelArgument,
    SourcesOption,
    load_model_sources,
    load_unless_fitted,
    write_part,
)
from ttdg.cli.options import BenchmarkOption, DataOption, DeviceOption, WorkersOption
from ttdg.cli.progress import progress_bar

if TYPE_CHECKING:
    from ttdg.checkpoints import Model
    from ttdg.data import Sources


def fit_fingerprint_command(
    model: ModelArgument,
    data: DataOption = None,
    benchmark: BenchmarkOption = None,
    sources: SourcesOption = None,
    hospitals: Annotated[
        int,
        typer.Option(min=4, help="Simulated hospitals from which the limits of the verdicts are calibrated."),
    ] = 48,
    seed: Annotated[int, typer.Option(help="Seed of the fit.")] = 0,
    again: AgainOption = False,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Describe the source sites, so that [bold]ttdg predict[/bold] can say how far a new site is from them.

    [bold]ttdg train[/bold] makes the fingerprint of a new model; this command is for models without one.

    Example: [bold]ttdg fit-fingerprint models/no-etis -d ~/data/polyp -b polyp[/bold]
    """
    loaded = load_unless_fitted(model, "fingerprint", device, again)
    if loaded is None:
        return
    write_fingerprint(
        model, loaded, load_model_sources(loaded, data, benchmark, sources, workers), hospitals, seed
    )


def write_fingerprint(
    folder: Path, model: "Model", sources: "Sources", hospitals: int = 48, seed: int = 0
) -> None:
    """Fit the fingerprint of a model and write it into its folder."""
    from ttdg.safety import count_steps, fit_fingerprint

    with progress_bar("fitting fingerprint", count_steps(len(sources.train), hospitals)) as progress:
        part = fit_fingerprint(
            model.network, sources.train, sources.held_out, model.card.benchmark, hospitals=hospitals, seed=seed,
            progress=progress,
        )  # fmt: skip
    write_part(folder, model, "fingerprint", part, {"hospitals": hospitals, "seed": seed})
