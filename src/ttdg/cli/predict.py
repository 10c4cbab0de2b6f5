"""ttdg predict: a folder of images from a new site in, masks out."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from ttdg.cli.options import (
    BatchOption,
    DeviceOption,
    MethodOption,
    ModelOption,
    SetOption,
    WorkersOption,
    choose_device,
    parse_settings,
)

PARTLY = 3  # exit status when some files were set aside


def predict_command(
    images: Annotated[Path, typer.Option("--images", "-i", help="Folder of images, without masks.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for masks, overlays and the manifest.")],
    model: ModelOption = "demo",
    method: MethodOption = "source",
    settings: SetOption = None,
    batch: BatchOption = 4,
    device: DeviceOption = "auto",
    overlays: Annotated[bool, typer.Option(help="Also draw each mask over its image.")] = True,
    workers: WorkersOption = None,
) -> None:
    """Segment a folder of images, adapting to them; masks come in each image's own size.

    Unreadable files are set aside with a reason and the rest go on (exit status 3). A second call resumes.

    Example: [bold]ttdg predict -m models/no-etis -i new-site/ -o out/ --method judge[/bold]
    """
    from ttdg.checkpoints import load
    from ttdg.cli.progress import progress_bar
    from ttdg.data import open_folder
    from ttdg.newsite import predict as run

    loaded = load(model, choose_device(device))
    with progress_bar("segmenting", len(open_folder(images))) as progress:
        outcome = run(
            loaded, images, out, method=method, options=parse_settings(settings), batch=batch,
            overlays=overlays, workers=workers, progress=progress,
        )  # fmt: skip
    typer.echo(f"{outcome.manifest}: {outcome.done} segmented, {outcome.kept} kept from before")
    if outcome.expected_dice:
        typer.echo(_expected(outcome.expected_dice))
    for file, reason in outcome.set_aside.items():
        typer.echo(f"set aside {file}: {reason}", err=True)
    raise typer.Exit(PARTLY if outcome.set_aside else 0)


def _expected(dice: Mapping[str, float], most: int = 3) -> str:
    """How good the masks are thought to be, and where to look first."""
    worst = sorted(dice.items(), key=lambda item: item[1])[:most]
    named = ", ".join(f"{file} ({value:.2f})" for file, value in worst)
    return f"expected Dice: median {median(dice.values()):.2f}; look first at {named}"
