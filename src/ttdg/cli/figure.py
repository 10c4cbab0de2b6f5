"""The commands `ttdg figure`: the figures of the paper, on drawn hospitals or on a benchmark folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ttdg.cli.options import (
    BenchmarkOption,
    DeviceOption,
    check_methods,
    choose_device,
    choose_sites,
    open_data,
    output_folder,
)
from ttdg.errors import UserError

if TYPE_CHECKING:
    from ttdg.checkpoints import Model
    from ttdg.data import Benchmark, Site

METHODS = ("source", "vptta", "universe-gradient")  # the embedded model has all that they need
EASIER = "lakeside"  # a drawn hospital where small models find the structures

app = typer.Typer(
    no_args_is_help=True,
    help="Draw a figure of the paper. Without --data, hospitals of the model's kind are drawn.",
)
OutOption = Annotated[
    Path, typer.Option("--out", "-o", help="Folder for the figure and drawn images.", callback=output_folder)
]
FigureData = Annotated[
    Path | None,
    typer.Option("--data", "-d", help="Benchmark folder; default: hospitals are drawn.", show_default=False),
]
ModelChoice = Annotated[str, typer.Option("--model", "-m", help="Checkpoint folder, or [bold]demo[/bold].")]
SiteOption = Annotated[
    str | None,
    typer.Option("--site", help="Default: a site the model was not trained at.", show_default=False),
]
MethodsOption = Annotated[
    list[str] | None,
    typer.Option("--method", help=f"May be repeated; default {', '.join(METHODS)}.", show_default=False),
]
ImagesOption = Annotated[int, typer.Option("--images", min=1, help="Images to show, one a row.")]
CasesOption = Annotated[int, typer.Option("--cases", min=2, help="Images of each drawn hospital.")]


@app.command("segmentation")
def segmentation_command(
    out: OutOption,
    model: ModelChoice = "demo",
    data: FigureData = None,
    benchmark: BenchmarkOption = None,
    site: SiteOption = None,
    methods: MethodsOption = None,
    images: ImagesOption = 4,
    cases: CasesOption = 16,
    device: DeviceOption = "auto",
) -> None:
    """Draw a grid of segmentations: image, truth, and the answer of each method (Figures 3, A1 and A2).

    Example: [bold]ttdg figure segmentation -o figures[/bold]
    """
    from ttdg.report.figures.paper import draw_segmentations

    loaded, described, sites = _opened(model, data, benchmark, out, cases, device)
    target, chosen = _target(loaded, sites, site), _methods(methods, loaded)
    typer.echo(draw_segmentations(out / "segmentation.png", loaded, target, described, chosen, images))


@app.command("grad-cam")
def grad_cam_command(
    out: OutOption,
    model: ModelChoice = "demo",
    data: FigureData = None,
    benchmark: BenchmarkOption = None,
    site: SiteOption = None,
    methods: MethodsOption = None,
    images: ImagesOption = 4,
    cases: CasesOption = 16,
    device: DeviceOption = "auto",
) -> None:
    """Draw the Grad-CAM of the last encoder stage for each method after it adapted to the site (Figure 3).

    Example: [bold]ttdg figure grad-cam -o figures --method source --method vptta[/bold]
    """
    from ttdg.report.figures.paper import draw_site_cams

    loaded, described, sites = _opened(model, data, benchmark, out, cases, device)
    target, chosen = _target(loaded, sites, site), _methods(methods, loaded)
    typer.echo(draw_site_cams(out / "grad-cam.png", loaded, target, described, chosen, images))


@app.command("matching")
def matching_command(
    out: OutOption,
    model: ModelChoice = "demo",
    data: FigureData = None,
    benchmark: BenchmarkOption = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--site", help="Two sites. Default: one of training and one not.", show_default=False),
    ] = None,
    cases: CasesOption = 8,
    device: DeviceOption = "auto",
) -> None:
    """Draw matched nodes of images of two sites, without and with the prior (Figure A3).

    Example: [bold]ttdg figure matching -o figures[/bold]
    """
    from ttdg.report.figures.paper import draw_site_pairs, target_of

    loaded, described, sites = _opened(model, data, benchmark, out, cases, device)
    if names:
        pair = list(choose_sites(sites, names).values())
    else:
        target = target_of(loaded, sites, None)
        pair = [next(site for site in sites.values() if site != target), target]
    typer.echo(draw_site_pairs(out / "matching.png", loaded, pair, described))


@app.command("class-matrix")
def class_matrix_command(
    out: OutOption,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Two models of Algorithm 1: with W, then without. Default: both are trained.",
            show_default=False,
        ),
    ] = None,
    data: FigureData = None,
    benchmark: BenchmarkOption = None,
    site: SiteOption = None,
    images: ImagesOption = 4,
    cases: CasesOption = 30,
    steps: Annotated[int, typer.Option(min=1, help="Training steps, if no models are given.")] = 150,
    encoder: Annotated[str, typer.Option(help="Encoder, if no models are given.")] = "light",
    device: DeviceOption = "auto",
) -> None:
    """Draw the answers of the paper's method with and without the class matrix W (Figures A4 and A5).

    Without models, two are trained by Algorithm 1 at all sites but one. They are kept in OUT/models.

    Example: [bold]ttdg figure class-matrix -o figures[/bold]
    """
    from ttdg.checkpoints import load
    from ttdg.data import load_benchmark
    from ttdg.report.figures.paper import (
        WITH_W,
        draw_class_matrix,
        drawn_hospitals,
        train_with_and_without_w,
    )
    from ttdg.training import Recipe

    if models and len(models) != len(WITH_W):
        raise UserError(f"give --model twice, {' and then '.join(WITH_W)}, or not at all")
    place = choose_device(device)
    if models:
        described, sites = open_data(data, benchmark)
        found = {name: load(path, place) for name, path in zip(WITH_W, models, strict=True)}
        _check_class_matrices(found)
    else:
        from dataclasses import replace

        kind = replace(load_benchmark("synthetic-fundus"), size=64)
        described, sites = open_data(data, benchmark) if data else drawn_hospitals(out, kind, cases)
        target = site or (EASIER if data is None else next(iter(sites)))
        sources = {name: one for name, one in sites.items() if name not in choose_sites(sites, [target])}
        recipe = Recipe(
            encoder=encoder, optimiser="adamw", lr=0.003, steps=steps, batch=8, loss="ce", average=0.0,
            universe=1.0, universe_loss="literal",
        )  # fmt: skip
        found = train_with_and_without_w(
            out / "models", sources, described, recipe, place.partition(":")[0], typer.echo
        )
    target_site = _target(next(iter(found.values())), sites, site)
    path, dice = draw_class_matrix(out / "class-matrix.png", found, target_site, described, images)
    scores = ", ".join(f"{name} {100 * value:.1f}" for name, value in dice.items())
    typer.echo(f"{path}: mean Dice at {target_site.name}: {scores}")


def _check_class_matrices(models: "dict[str, Model]") -> None:
    """Refuse models that Algorithm 1 has not trained, and a pair that is not one with W and one without."""
    for (name, model), used in zip(models.items(), (True, False), strict=True):
        loss, matrix = (model.card.recipe.get(field) for field in ("universe_loss", "class_matrix"))
        if loss != "literal" or (matrix != "none") is not used:
            wanted = "printed or masked" if used else "none"
            raise UserError(
                f"the model {name!r} was trained with --universe-loss {loss or 'repaired'} --class-matrix "
                f"{matrix or 'printed'}; it needs literal and {wanted}"
            )


def _opened(
    model: str, data: Path | None, benchmark: str | None, out: Path, cases: int, device: str
) -> "tuple[Model, Benchmark, dict[str, Site]]":
    """Load the model, and open its data or draw some."""
    from ttdg.checkpoints import load
    from ttdg.report.figures.paper import drawn_hospitals

    loaded = load(model, choose_device(device))
    if data is not None:
        return loaded, *open_data(data, benchmark)
    return loaded, *drawn_hospitals(out, loaded.card.benchmark, cases)


def _target(model: "Model", sites: "dict[str, Site]", name: str | None) -> "Site":
    """Return the site with this name, or one that the model was not trained at; an unknown name raises."""
    from ttdg.report.figures.paper import target_of

    choose_sites(sites, [name] if name else [])
    return target_of(model, sites, name)


def _methods(names: list[str] | None, model: "Model") -> list[str]:
    """Return the methods to draw; one that is unknown, or needs a part that the model lacks, raises."""
    chosen = names or list(METHODS)
    check_methods(chosen, model.parts)
    return chosen
