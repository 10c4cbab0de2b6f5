"""ttdg train: a source model from some sites of a benchmark."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ttdg.cli.options import BenchmarkOption, DataOption, WorkersOption, choose_sites, open_data
from ttdg.cli.progress import progress_bar, training_bar
from ttdg.errors import UserError

if TYPE_CHECKING:
    import torch

    from ttdg.data import Arrays


def train_command(
    out: Annotated[Path, typer.Option("--out", "-o", help="Checkpoint folder to write.")],
    data: DataOption = None,
    benchmark: BenchmarkOption = None,
    sources: Annotated[
        str | None, typer.Option(help="Sites to train on, with commas; default all.", show_default=False)
    ] = None,
    leave_out: Annotated[
        str | None, typer.Option(help="Sites not to train on, with commas.", show_default=False)
    ] = None,
    encoder: Annotated[str, typer.Option(help="light, resnet18, resnet34 or resnet50.")] = "resnet50",
    encoder_weights: Annotated[
        Path | None, typer.Option(help="ImageNet weights with torchvision's names.", show_default=False)
    ] = None,
    strides: Annotated[
        str, typer.Option(help="v1.5 (torchvision) or v1 (Caffe, Keras): what the weights want.")
    ] = "v1.5",
    steps: int = 4000,
    batch: Annotated[int, typer.Option(help="Images a step, over all processes.")] = 8,
    optimiser: Annotated[str, typer.Option(help="sgd or adamw.")] = "sgd",
    lr: float = 1e-3,
    loss: Annotated[str, typer.Option(help="ce or dice+ce.")] = "dice+ce",
    augmentation: Annotated[str, typer.Option(help="none, standard or strong.")] = "standard",
    universe: Annotated[
        float, typer.Option(min=0, help="Weight of L(𝒰), which trains the morphology prior; 0: none.")
    ] = 0.1,
    precision: Annotated[str, typer.Option(help="auto (bf16 on a GPU), 32 or bf16.")] = "auto",
    seed: int = 0,
    deterministic: Annotated[bool, typer.Option(help="Only deterministic algorithms.")] = False,
    accelerator: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    devices: Annotated[int, typer.Option(help="Processes; torchrun works too.")] = 1,
    tensorboard: Annotated[bool, typer.Option(help="Log to OUT.tensorboard (needs tensorboard).")] = False,
    parts: Annotated[
        str | None,
        typer.Option(
            "--with",
            help="Parts to fit afterwards, with commas: deynet, nc-ttt, tasd-r, itta.",
            show_default=False,
        ),
    ] = None,
    part_steps: Annotated[int, typer.Option("--with-steps", min=1, help="Steps for each part.")] = 1000,
    workers: WorkersOption = None,
) -> None:
    """Train a source model; a killed run goes on when the same command is given again.

    The morphology prior that [bold]universe[/bold] and [bold]judge[/bold] need is trained along with the network.
    Given again with [bold]--with[/bold], it fits those parts that do not yet lie beside the checkpoint.

    Example: [bold]ttdg train -d ~/data/polyp -b polyp --leave-out etis -o models/no-etis
    --encoder-weights resnet50.safetensors --strides v1[/bold]
    """
    from ttdg.training import Recipe, load_sources, make_fabric
    from ttdg.training import train as run

    recipe = Recipe(
        encoder, str(encoder_weights) if encoder_weights else None, strides, steps, batch, optimiser, lr,
        loss=loss, augmentation=augmentation, universe=universe, precision=precision, seed=seed,
        deterministic=deterministic,
    )  # fmt: skip
    wanted = _parts(parts)
    described, sites = open_data(data, benchmark)
    chosen = choose_sites(sites, _names(list(sites), sources, leave_out))
    fabric = make_fabric(recipe, accelerator, devices)
    with progress_bar(
        "reading", sum(len(site.cases) for site in chosen.values()), fabric.is_global_zero
    ) as progress:
        loaded = load_sources(chosen, described, workers, progress)
    if _finished(out, recipe.to_dict(), loaded.provenance):
        more = "" if wanted else "; nothing to do"
        typer.echo(f"{out}: already trained with this recipe on these data{more}")
    else:
        with training_bar(out, fabric.is_global_zero, tensorboard) as on_progress:
            card = run(
                loaded.train, loaded.held_out, described, recipe, out,
                fabric=fabric, provenance=loaded.provenance, on_progress=on_progress,
            )  # fmt: skip
        if fabric.is_global_zero:
            scores = ", ".join(f"{region} {100 * score:.1f}" for region, score in card.validation.items())
            typer.echo(f"{out}: Dice on held-out source images: {scores}")
    if fabric.is_global_zero:
        _fit(out, wanted, loaded.train, fabric.device, seed, part_steps)


def _parts(names: str | None) -> list[str]:
    """The parts asked for; a wrong name is said before anything is trained."""
    if not names:
        return []
    from ttdg.errors import suggestion
    from ttdg.training.parts.fits import EXTRAS

    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in EXTRAS:
            raise UserError(f"--with knows no part {name!r}{suggestion(name, EXTRAS)}")
    return wanted


def _fit(
    out: Path,
    names: list[str],
    sources: "Mapping[str, Arrays]",
    device: "torch.device",
    seed: int,
    steps: int,
) -> None:
    """Fit the parts that are not there yet, each written as soon as it is ready."""
    from ttdg.checkpoints import fit_text, load, save_part
    from ttdg.training.parts.fits import fit_part

    if not names:
        return
    model = load(out, device)
    for name in names:
        if name in model.parts:
            how = fit_text(model.parts[name])
            typer.echo(
                f"{out}: has the part {name} already{f' ({how})' if how else ''}; "
                f"to fit it anew, remove {out / f'{name}.safetensors'} and give this command again"
            )
            continue
        with progress_bar(f"fitting {name}", steps) as progress:
            part = fit_part(
                name, model.network, sources, model.card.benchmark, device,
                seed=seed, steps=steps, progress=progress,
            )  # fmt: skip
        typer.echo(f"{save_part(out, name, part, model.card.sha256)} written")


def _names(sites: list[str], sources: str | None, leave_out: str | None) -> list[str]:
    """The sites to train on; asking for both lists, or leaving nothing, is an error."""
    if sources and leave_out:
        raise UserError("give --sources or --leave-out, not both")
    if sources:
        return sources.split(",")
    left = (leave_out or "").split(",") if leave_out else []
    choose_sites(dict.fromkeys(sites), left)  # type: ignore[arg-type]  # names the near miss of a wrong one
    if not (names := [name for name in sites if name not in left]):
        raise UserError("--leave-out leaves no site to train on")
    return names


def _finished(out: Path, recipe: dict[str, object], provenance: object) -> bool:
    """Is this very model there already? Another one in its place is not overwritten."""
    from ttdg.checkpoints import read_card

    if not out.exists():
        return False
    card = read_card(out)
    if card.recipe == recipe and card.sources == provenance:
        return True
    raise UserError(f"{out} holds a model trained otherwise; choose another --out or remove it")
