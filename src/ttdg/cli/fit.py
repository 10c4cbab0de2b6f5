"""ttdg fit-prior, ttdg fit-judge: what `universe` and `judge` need besides the network, from its own source images."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttdg.cli.options import (
    BenchmarkOption,
    DataOption,
    DeviceOption,
    WorkersOption,
    choose_device,
    choose_sites,
    open_data,
)
from ttdg.cli.progress import progress_bar
from ttdg.errors import UserError

if TYPE_CHECKING:
    from ttdg.checkpoints import Model
    from ttdg.training import Sources
    from ttdg.types import Part

ModelArgument = Annotated[Path, typer.Argument(help="Checkpoint folder; the part is written into it.")]
SourcesOption = Annotated[
    str | None,
    typer.Option(
        help="Some of the model's source sites, with commas; default all of them.", show_default=False
    ),
]
AgainOption = Annotated[bool, typer.Option("--again", help="Replace the part that is there.")]


def fit_prior_command(
    model: ModelArgument,
    data: DataOption = None,
    benchmark: BenchmarkOption = None,
    sources: SourcesOption = None,
    steps: Annotated[int, typer.Option(min=1, help="Batches of 8 images.")] = 600,
    seed: int = 0,
    again: AgainOption = False,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Fit the morphology prior (φ and the universe of anatomy) to a trained model, beside its untouched weights.

    [bold]ttdg train[/bold] makes one by default; this is for models that have none.

    Example: [bold]ttdg fit-prior models/no-etis -d ~/data/polyp -b polyp[/bold]
    """
    from ttdg.training.prior_fit import fit_prior as fit

    loaded = _open(model, "prior", device, again)
    if loaded is None:
        return
    given = _sources(loaded, data, benchmark, sources, workers)
    with progress_bar("fitting prior", steps) as progress:
        prior = fit(
            loaded.network, given.train, loaded.card.benchmark, steps=steps, seed=seed, progress=progress
        )
    _write(model, loaded, "prior", prior.to_part(), {"steps": steps, "seed": seed})
    if (model / "judge.safetensors").exists():
        typer.echo(
            f"{model}: its judge knew another prior; fit it again with `ttdg fit-judge {model} --again`"
        )


def fit_judge_command(
    model: ModelArgument,
    data: DataOption = None,
    benchmark: BenchmarkOption = None,
    sources: SourcesOption = None,
    draws: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Times each site is seen elsewhere. Default: 3, a small site more often.",
            show_default=False,
        ),
    ] = None,
    mixing_steps: Annotated[int, typer.Option(min=1, help="Of the layers' mixing weights.")] = 100,
    readings: Annotated[
        str, typer.Option(help="four or seven: forward passes the judge takes for a batch.")
    ] = "four",
    controls: Annotated[
        bool,
        typer.Option(
            "--controls", help="Also judges of a random and of an untyped universe, to compare with."
        ),
    ] = False,
    seed: int = 0,
    again: AgainOption = False,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Fit the judge on simulated shifts of source images that were held out of training; a prior must be there.

    Example: [bold]ttdg fit-judge models/no-etis -d ~/data/polyp -b polyp[/bold]
    """
    from ttdg.adaptation.judge.fit import fit_judge as fit
    from ttdg.adaptation.judge.fit import rounds
    from ttdg.checkpoints import required_parts
    from ttdg.prior import MorphologyPrior

    loaded = _open(model, "judge", device, again)
    if loaded is None:
        return
    (part,) = required_parts("judge", ("prior",), loaded.parts)
    prior = MorphologyPrior.from_part(part).to(next(loaded.network.parameters()).device)
    given = _sources(loaded, data, benchmark, sources, workers)
    how: dict[str, Any] = {
        "draws": draws,
        "mixing_steps": mixing_steps,
        "readings": readings,
        "controls": controls,
        "seed": seed,
    }
    with progress_bar("fitting judge", rounds(given.held_out, draws)) as progress:
        judge = fit(
            loaded.network,
            prior,
            given.train,
            given.held_out,
            loaded.card.benchmark,
            **how,
            progress=progress,
        )
    _write(model, loaded, "judge", judge, {name: value for name, value in how.items() if value is not None})


def _open(folder: Path, part: str, device: str, again: bool) -> "Model | None":
    """The model, unless it has the part already and shall keep it."""
    from ttdg.checkpoints import EMBEDDED, load

    if str(folder) in EMBEDDED and not folder.exists():
        raise UserError(f"{folder} is a part of the installation; train a model, or copy its folder first")
    model = load(folder, choose_device(device))
    if part in model.parts and not again:
        typer.echo(f"{folder}: has the part {part} already; --again fits another in its place")
        return None
    return model


def _sources(
    model: "Model", data: Path | None, benchmark: str | None, names: str | None, workers: int | None
) -> "Sources":
    """The images this model was trained on and those it held out, and no others."""
    from ttdg.evaluation.site import benchmark_for_model
    from ttdg.training import load_sources
    from ttdg.training.sources import check_provenance

    described, sites = open_data(data, benchmark)
    wanted, known = names.split(",") if names else list(model.card.sources), model.card.sources
    for name in wanted:
        if name not in known:
            raise UserError(f"{name!r} is no source of this model; its sources are {', '.join(known)}")
    chosen = choose_sites(sites, wanted)
    with progress_bar("reading", sum(len(site.cases) for site in chosen.values())) as progress:
        loaded = load_sources(chosen, benchmark_for_model(model.card, described), workers, progress)
    check_provenance(loaded.provenance, known)
    return loaded


def _write(folder: Path, model: "Model", name: str, part: "Part", how: Mapping[str, Any]) -> None:
    from ttdg.checkpoints import save_part

    path = save_part(folder, name, replace(part, fitted=how), model.card.sha256)
    typer.echo(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
