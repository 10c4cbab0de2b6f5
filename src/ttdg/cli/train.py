"""The command `ttdg train`."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttdg.cli.options import (
    BenchmarkOption,
    DataOption,
    WorkersOption,
    choose_sites,
    open_data,
    output_folder,
)
from ttdg.cli.progress import progress_bar, training_bar
from ttdg.errors import UserError
from ttdg.training.recipe import Recipe

if TYPE_CHECKING:
    import torch

    from ttdg.data import Arrays, Benchmark, Site, Sources

USELESS = 0.01  # Dice on held-out source images at which a warning is given
HELP = {field.name: field.metadata["help"] for field in fields(Recipe)}


def _setting(name: str, **options: Any) -> Any:
    """An option for a field of `Recipe`, with the field's description as its help."""
    return typer.Option(help=HELP[name], **options)


def train_command(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Checkpoint folder to write.", callback=output_folder)
    ],
    data: DataOption = None,
    benchmark: BenchmarkOption = None,
    sources: Annotated[
        str | None,
        typer.Option(help="Sites to train on, separated by commas; default: all.", show_default=False),
    ] = None,
    leave_out: Annotated[
        str | None, typer.Option(help="Sites not to train on, separated by commas.", show_default=False)
    ] = None,
    encoder: Annotated[str, _setting("encoder")] = Recipe.encoder,
    encoder_weights: Annotated[Path | None, _setting("encoder_weights", show_default=False)] = None,
    strides: Annotated[str, _setting("strides")] = Recipe.strides,
    steps: Annotated[int, _setting("steps")] = Recipe.steps,
    batch: Annotated[int, _setting("batch")] = Recipe.batch,
    optimiser: Annotated[str, _setting("optimiser")] = Recipe.optimiser,
    lr: Annotated[float, _setting("lr")] = Recipe.lr,
    loss: Annotated[str, _setting("loss")] = Recipe.loss,
    augmentation: Annotated[str, _setting("augmentation")] = Recipe.augmentation,
    universe: Annotated[float, _setting("universe", min=0)] = Recipe.universe,
    universe_loss: Annotated[str, _setting("universe_loss")] = Recipe.universe_loss,
    class_matrix: Annotated[str, _setting("class_matrix")] = Recipe.class_matrix,
    points: Annotated[int, _setting("points", min=1)] = Recipe.points,
    fourier: Annotated[float, _setting("fourier", min=0, max=1)] = Recipe.fourier,
    photometric: Annotated[float, _setting("photometric", min=0, max=1)] = Recipe.photometric,
    mixstyle: Annotated[float, _setting("mixstyle", min=0, max=1)] = Recipe.mixstyle,
    average: Annotated[float, _setting("average", min=0, max=1)] = Recipe.average,
    precision: Annotated[str, _setting("precision")] = Recipe.precision,
    seed: Annotated[int, _setting("seed")] = Recipe.seed,
    deterministic: Annotated[bool, _setting("deterministic")] = Recipe.deterministic,
    accelerator: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    devices: Annotated[int, typer.Option(help="Number of processes; torchrun works too.")] = 1,
    tensorboard: Annotated[
        bool, typer.Option(help="Log to OUT.tensorboard (needs the package tensorboard).")
    ] = False,
    parts: Annotated[
        str | None,
        typer.Option(
            "--with",
            help="Parts to fit after training, separated by commas: deynet, nc-ttt, tasd-r, itta.",
            show_default=False,
        ),
    ] = None,
    part_steps: Annotated[int, typer.Option("--with-steps", min=1, help="Steps for each part.")] = 1000,
    fingerprint: Annotated[
        bool, typer.Option(help="Also describe the source sites, to measure how far a new site is from them.")
    ] = True,
    workers: WorkersOption = None,
) -> None:
    """Train a source model; the same command continues an interrupted run.

    The morphology prior that [bold]universe-choice[/bold] and [bold]judge[/bold] need is trained with the network.
    [bold]--universe-loss literal --universe 1[/bold] trains the universe of the paper instead, which
    [bold]universe-literal[/bold] needs.
    With [bold]--with[/bold], the command also fits those parts that the checkpoint does not have yet.

    Example: [bold]ttdg train -d ~/data/polyp -b polyp --leave-out etis -o models/no-etis
    --encoder-weights resnet50.safetensors --strides v1[/bold]

    A classifier: [bold]ttdg train -d ~/data/pacs -b pacs --leave-out sketch --loss ce -o models/no-sketch[/bold]
    """
    from ttdg.bench.folder import exclusive_lock
    from ttdg.checkpoints import load
    from ttdg.cli.models.fingerprint import write_fingerprint
    from ttdg.training import make_fabric

    recipe = Recipe(
        encoder=encoder, encoder_weights=str(encoder_weights) if encoder_weights else None, strides=strides,
        steps=steps, batch=batch, optimiser=optimiser, lr=lr, loss=loss, augmentation=augmentation,
        universe=universe, universe_loss=universe_loss, class_matrix=class_matrix, points=points,
        fourier=fourier, photometric=photometric, mixstyle=mixstyle, average=average,
        precision=precision, seed=seed, deterministic=deterministic,
    )  # fmt: skip
    part_names = _part_names(parts)
    described, sites = open_data(data, benchmark)
    _check_parts(part_names, described.task)
    chosen = choose_sites(sites, _site_names(list(sites), sources, leave_out))
    fabric = make_fabric(recipe, accelerator, devices)
    lock = out.parent / f".{out.name}.lock"
    with exclusive_lock(lock, wait=False) if fabric.is_global_zero else nullcontext():
        provided = _train(out, chosen, described, recipe, fabric, workers, tensorboard, bool(part_names))
        if fabric.is_global_zero:
            _fit_parts(out, part_names, provided.train, fabric.device, seed, part_steps)
            if fingerprint and not (out / "fingerprint.safetensors").exists():
                write_fingerprint(out, load(out, fabric.device), provided, seed=seed)


def _train(
    out: Path,
    sites: "dict[str, Site]",
    benchmark: "Benchmark",
    recipe: Recipe,
    fabric: Any,
    workers: int | None,
    tensorboard: bool,
    more: bool,
) -> "Sources":
    """Train unless the model is there, and return the images; `more` says that parts are fitted next."""
    from ttdg.data import load_sources
    from ttdg.training import train

    cases = sum(len(site.cases) for site in sites.values())
    with progress_bar("reading", cases, fabric.is_global_zero) as progress:
        loaded = load_sources(sites, benchmark, workers, progress)
    if _finished(out, recipe.to_dict(), loaded.provenance):
        rest = "" if more else "; nothing to do"
        typer.echo(f"{out}: already trained with this recipe on these data{rest}")
        return loaded
    with training_bar(out, fabric.is_global_zero, tensorboard) as on_progress:
        card = train(
            loaded.train, loaded.held_out, benchmark, recipe, out,
            fabric=fabric, provenance=loaded.provenance, on_progress=on_progress,
        )  # fmt: skip
    if fabric.is_global_zero:
        scores = ", ".join(f"{region} {100 * score:.1f}" for region, score in card.validation.items())
        metric = "" if benchmark.task == "classification" else "Dice on "
        typer.echo(f"{out}: {metric}held-out source images: {scores}")
        if useless := [region for region, score in card.validation.items() if not score > USELESS]:
            typer.echo(
                f"warning: {', '.join(useless)}: the model finds nothing on held-out images of its own sites; "
                f"try more --steps than {recipe.steps}, or another --lr than {recipe.lr:g}",
                err=True,
            )
    return loaded


def _part_names(names: str | None) -> list[str]:
    """Parse --with; an unknown name raises before training starts."""
    if not names:
        return []
    from ttdg.errors import suggestion
    from ttdg.training.parts import EXTRAS

    parsed = [name.strip() for name in names.split(",") if name.strip()]
    for name in parsed:
        if name not in EXTRAS:
            raise UserError(f"unknown part {name!r} in --with{suggestion(name, EXTRAS)}")
    return parsed


def _check_parts(names: list[str], task: str) -> None:
    """Raise before training if the method of a part cannot adapt a network of this task."""
    if names:
        from ttdg.adaptation import check_applies

        for name in names:  # a part of --with has the name of its method
            check_applies(name, task)


def _fit_parts(
    out: Path,
    names: list[str],
    sources: "Mapping[str, Arrays]",
    device: "torch.device",
    seed: int,
    steps: int,
) -> None:
    """Fit the parts that the checkpoint does not have yet; write each as soon as it is ready."""
    from ttdg.checkpoints import fit_description, load, save_part
    from ttdg.training.parts import fit_part

    if not names:
        return
    model = load(out, device)
    for name in names:
        if name in model.parts:
            settings = fit_description(model.parts[name])
            typer.echo(
                f"{out}: has the part {name} already{f' ({settings})' if settings else ''}; "
                f"to fit it again, remove {out / f'{name}.safetensors'} and repeat this command"
            )
            continue
        with progress_bar(f"fitting {name}", steps) as progress:
            part = fit_part(
                name, model.network, sources, model.card.benchmark, device,
                seed=seed, steps=steps, progress=progress,
            )  # fmt: skip
        typer.echo(f"{save_part(out, name, part, model.card.sha256)} written")


def _site_names(sites: list[str], sources: str | None, leave_out: str | None) -> list[str]:
    """Return the sites to train on, from --sources or --leave-out."""
    if sources and leave_out:
        raise UserError("give --sources or --leave-out, not both")
    if sources:
        return sources.split(",")
    excluded = leave_out.split(",") if leave_out else []
    choose_sites(dict.fromkeys(sites), excluded)  # type: ignore[arg-type]  # raises for an unknown name
    if not (names := [name for name in sites if name not in excluded]):
        raise UserError("--leave-out excludes every site; keep at least one to train on")
    return names


def _finished(out: Path, recipe: dict[str, object], provenance: object) -> bool:
    """True if `out` holds the model of this recipe and these data; another model there raises."""
    from ttdg.checkpoints import read_card

    if not out.exists():
        return False
    card = read_card(out)
    if card.recipe == recipe and card.sources == provenance:
        return True
    raise UserError(
        f"{out} holds a model trained otherwise (another recipe or other data); choose another --out or remove it"
    )
