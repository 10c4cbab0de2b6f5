"""The command `ttdg predict`."""

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
    ViewsOption,
    WorkersOption,
    options_text,
    output_folder,
    parse_settings,
)
from ttdg.errors import UserError

STREAMS = ("online", "folder")
PARTLY = 3  # exit status if some files were set aside


def predict_command(
    images: Annotated[Path, typer.Option("--images", "-i", help="Folder of images, without masks.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Folder for masks, overlays and the manifest.", callback=output_folder
        ),
    ],
    model: ModelOption = "demo",
    method: MethodOption = "source",
    settings: SetOption = None,
    views: ViewsOption = "plain",
    stream: Annotated[
        str | None,
        typer.Option(
            help="online (adapt to each batch when it is answered) or folder (learn all images, then answer them). "
            "Default: folder for methods that learn a site, such as universe and self-training; online for all others.",
            show_default=False,
        ),
    ] = None,
    batch: BatchOption = 4,
    device: DeviceOption = "auto",
    overlays: Annotated[
        bool, typer.Option(help="Also draw each mask over its image, at most 2048 pixels wide or high.")
    ] = True,
    workers: WorkersOption = None,
) -> None:
    """Segment a folder of images and adapt to them; each mask has the size of its image.

    Unreadable files are set aside with a reason (exit status 3). A second call resumes an interrupted one, and a site
    that was learned is not learned again.

    Example: [bold]ttdg predict -m models/no-etis -i new-site/ -o out/ --method judge[/bold]

    Learn all images, then answer them: [bold]ttdg predict -m models/no-etis -i new-site/ -o out/ --method universe
    --stream folder[/bold]
    """
    from ttdg.checkpoints import load
    from ttdg.cli.progress import progress_bars
    from ttdg.newsite import predict

    options = parse_settings(settings)
    if stream not in (None, *STREAMS):
        raise UserError(f"--stream is {' or '.join(STREAMS)}, not {stream!r}")
    with progress_bars("learning", "segmenting") as (learning, progress):
        loaded = load(model, device)
        outcome = predict(
            loaded, images, out, method=method, options=options, views=views, stream=stream, batch=batch,
            overlays=overlays, workers=workers, progress=progress, learning=learning,
        )  # fmt: skip
    typer.echo(
        f"model {model} ({loaded.card.sha256[:12]}), method {method} with {options_text(options)}, "
        f"stream {outcome.stream}"
    )
    typer.echo(f"{outcome.manifest}: {outcome.done} segmented, {outcome.kept} kept from before")
    if outcome.expected_dice:
        typer.echo(_expected_dice(outcome.expected_dice))
    for remark, files in outcome.remarks.items():
        typer.echo(f"{remark} ({files} of {outcome.done + outcome.kept} files)")
    for file, reason in outcome.set_aside.items():
        typer.echo(f"set aside {file}: {reason}", err=True)
    raise typer.Exit(PARTLY if outcome.set_aside else 0)


def _expected_dice(dice: Mapping[str, float], most: int = 3) -> str:
    """Return the median expected Dice and the files with the lowest, which a person should check first."""
    worst = sorted(dice.items(), key=lambda item: item[1])[:most]
    named = ", ".join(f"{file} ({value:.2f})" for file, value in worst)
    return f"expected Dice: median {median(dice.values()):.2f}; look first at {named}"
