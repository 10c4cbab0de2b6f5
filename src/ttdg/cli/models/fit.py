"""The commands `ttdg fit-prior` and `ttdg fit-judge`, which fit parts to a trained model."""

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
    from ttdg.data import Sources
    from ttdg.types import Part

FEW_IMAGES = 30  # held-out images below which a warning is given
ModelArgument = Annotated[Path, typer.Argument(help="Checkpoint folder; the part is written into it.")]
SourcesOption = Annotated[
    str | None,
    typer.Option(
        help="Source sites of the model to use, separated by commas; default: all.", show_default=False
    ),
]
AgainOption = Annotated[bool, typer.Option("--again", help="Replace an existing part.")]


def fit_prior_command(
    model: ModelArgument,
    data: DataOption = None,
    benchmark: BenchmarkOption = None,
    sources: SourcesOption = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps, of 8 images each.")] = 600,
    seed: Annotated[int, typer.Option(help="Seed of the fit.")] = 0,
    again: AgainOption = False,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Fit a morphology prior (φ and the universe 𝒰) to a trained model; its weights do not change.

    [bold]ttdg train[/bold] trains a prior by default; this command is for models without one.

    Example: [bold]ttdg fit-prior models/no-etis -d ~/data/polyp -b polyp[/bold]
    """
    from ttdg.training.prior_fit import fit_prior as fit

    loaded = load_unless_fitted(model, "prior", device, again)
    if loaded is None:
        return
    given = load_model_sources(loaded, data, benchmark, sources, workers)
    with progress_bar("fitting prior", steps) as progress:
        prior = fit(
            loaded.network, given.train, loaded.card.benchmark, steps=steps, seed=seed, progress=progress
        )
    write_part(model, loaded, "prior", prior.to_part(), {"steps": steps, "seed": seed})
    if (model / "judge.safetensors").exists():
        typer.echo(
            f"{model}: its judge was fitted to the previous prior; fit it again with `ttdg fit-judge {model} --again`"
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
            help="Simulated shifts per source site; default: 3, more for a small site.",
            show_default=False,
        ),
    ] = None,
    mixing_steps: Annotated[
        int, typer.Option(min=1, help="Steps that fit the mixing weights of the BatchNorm layers.")
    ] = 100,
    readings: Annotated[
        str, typer.Option(help="Readings of the judge per batch: four, seven, or eight (two other sizes).")
    ] = "four",
    controls: Annotated[
        bool,
        typer.Option(
            "--controls", help="Also fit the control judges, with a random and an untyped universe."
        ),
    ] = False,
    hospitals: Annotated[
        int,
        typer.Option(
            min=0,
            help="Simulated hospitals that the method universe learns, to judge what it learns; 0 leaves it out.",
        ),
    ] = 8,
    learning_rate: Annotated[
        float, typer.Option(min=0.0, help="Learning rate of the method universe, here and at a new site.")
    ] = 1e-4,
    learning_steps: Annotated[int, typer.Option(min=1, help="Steps at each simulated hospital.")] = 100,
    learning_draw: Annotated[
        int, typer.Option(min=1, help="Images of each step, here and at a new site.")
    ] = 16,
    folder_steps: Annotated[
        int, typer.Option(min=1, help="Steps of the method universe on a folder of a new site.")
    ] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the fit.")] = 0,
    again: AgainOption = False,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Fit the judge on simulated shifts of held-out source images; the model needs a prior.

    An interrupted fit goes on after its finished rounds, which MODEL/judge.partial holds until the end.

    Example: [bold]ttdg fit-judge models/no-etis -d ~/data/polyp -b polyp[/bold]
    """
    from ttdg import __version__
    from ttdg.adaptation import required_parts
    from ttdg.adaptation.judge.finished_rounds import FinishedRounds
    from ttdg.adaptation.universe.fit import count_fit_rounds
    from ttdg.adaptation.universe.fit import fit_judges as fit
    from ttdg.prior import MorphologyPrior

    loaded = load_unless_fitted(model, "judge", device, again)
    if loaded is None:
        return
    (part,) = required_parts("judge", ("prior",), loaded.parts)
    where = next(loaded.network.parameters()).device
    prior = MorphologyPrior.from_part(part).to(where)
    given = load_model_sources(loaded, data, benchmark, sources, workers)
    settings: dict[str, Any] = {
        "draws": draws,
        "mixing_steps": mixing_steps,
        "readings": readings,
        "controls": controls,
        "hospitals": hospitals,
        "learning_rate": learning_rate,
        "learning_steps": learning_steps,
        "learning_draw": learning_draw,
        "folder_steps": folder_steps,
        "seed": seed,
    }
    rounds = count_fit_rounds(given.held_out, draws, hospitals)
    identity = {
        "version": __version__, "device": where.type, "network": loaded.card.sha256, "prior": part.digest,
        "benchmark": loaded.card.benchmark.to_dict(), "sources": given.provenance, "settings": settings,
    }  # fmt: skip
    finished = FinishedRounds(model / "judge.partial", identity, where)
    if len(finished):
        typer.echo(f"{model}: goes on after {len(finished)} of {rounds + 1} finished rounds", err=True)
    with progress_bar("fitting judge", rounds) as progress:
        judge = fit(
            loaded.network,
            prior,
            given.train,
            given.held_out,
            loaded.card.benchmark,
            **settings,
            progress=progress,
            keep=finished,
        )
    images = sum(len(arrays.cases) for arrays in given.held_out.values())
    typer.echo(summary_of(judge, images, loaded.card.benchmark.task))
    if images < FEW_IMAGES:
        typer.echo(
            f"warning: {images} held-out images are few to fit a judge to; do not rely on its expected Dice",
            err=True,
        )
    write_part(
        model, loaded, "judge", judge, {name: value for name, value in settings.items() if value is not None}
    )
    finished.sweep()


ANATOMIES = {
    "steady": "structures are of similar size in all images; `universe` carries labels from sure images to "
    "unsure ones, and intervals of the expected Dice contain how differently sites annotate",
    "varied": "structures vary in size from image to image; `universe` carries no labels between images, and averages "
    "its answers with the judge's where both agree",
    "absent": "some images show no structure; `universe` carries no labels, and for each image a judge chooses between "
    "the adapted and the unadapted answer",
    "thin": "structures are thin; `universe` does not learn them, and answers as `judge` does",
}


ONE_SIZE = (
    "the network loses on source images that are shown larger or smaller, so `universe` answers at one size; longer "
    "training with strong augmentation may help"
)


def summary_of(judge: "Part", images: int, task: str = "segmentation") -> str:
    """Say how well the judge predicts simulated hospitals that it was not fitted on, and how `universe` will work.

    The method `universe` is not for a classification.
    """
    fitted, quality = f"judge fitted on {images} held-out source images", judge.settings.get("quality")
    if quality is None:
        line = f"{fitted}; there are too few simulated hospitals to cross-validate it"
    else:
        rank = "none" if quality["rank"] is None else f"{quality['rank']:.2f}"
        line = (
            f"{fitted}; cross-validated over {quality['hospitals']} simulated hospitals: rank correlation of expected "
            f"and true Dice {rank}, {quality['coverage']:.0%} of the answers inside their 80 % interval"
        )
    learning = judge.settings.get("learning", {}) if task == "segmentation" else {}
    lines = [line, *([ANATOMIES[learning["anatomy"]]] if "anatomy" in learning else [])]
    return "\n".join(lines if learning.get("sizes", True) else [*lines, ONE_SIZE])


def load_unless_fitted(folder: Path, part: str, device: str, again: bool) -> "Model | None":
    """Load the model; None if it has the part already and `again` is not set."""
    from ttdg.checkpoints import is_included, load

    if is_included(folder):
        raise UserError(
            f"{folder} is part of the installation and is not changed; train a model, or copy its folder first"
        )
    model = load(folder, choose_device(device))
    if part in model.parts and not again:
        typer.echo(f"{folder}: has the part {part} already; use --again to replace it")
        return None
    return model


def load_model_sources(
    model: "Model", data: Path | None, benchmark: str | None, names: str | None, workers: int | None
) -> "Sources":
    """Load training and held-out images of the model's source sites; other data raise."""
    from ttdg.data import check_provenance, load_sources
    from ttdg.evaluation.site import benchmark_for_model

    described, sites = open_data(data, benchmark)
    trained_on = model.card.sources
    chosen_names = names.split(",") if names else list(trained_on)
    for name in chosen_names:
        if name not in trained_on:
            raise UserError(f"{name!r} is no source of this model; its sources are {', '.join(trained_on)}")
    chosen = choose_sites(sites, chosen_names)
    with progress_bar("reading", sum(len(site.cases) for site in chosen.values())) as progress:
        loaded = load_sources(chosen, benchmark_for_model(model.card, described), workers, progress)
    check_provenance(loaded.provenance, trained_on)
    return loaded


def write_part(folder: Path, model: "Model", name: str, part: "Part", settings: Mapping[str, Any]) -> None:
    """Write a part into the folder of its model and print its size."""
    from ttdg.checkpoints import save_part

    path = save_part(folder, name, replace(part, fitted=settings), model.card.sha256)
    typer.echo(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
