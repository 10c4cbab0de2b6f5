"""The command `ttdg drift`."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.options import DeviceOption, ModelOption, WorkersOption
from ttdg.errors import UserError

BAR = 30  # characters of a bar that reaches the largest distance


def drift_command(
    model: ModelOption,
    images: Annotated[
        list[Path],
        typer.Option(
            "--images", "-i", help="Folder of images, searched at any depth, or a file; may be repeated."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Say how far the images of a new site are from the sites that the model was trained on.

    The verdict is like home, shifted, far, or not this kind of image. At most 64 images are read, spread over the
    folder; at least 4 are needed. The model needs a fingerprint ([bold]ttdg fit-fingerprint[/bold]).

    Example: [bold]ttdg drift -m models/no-etis -i new-site/[/bold]
    """
    from ttdg.checkpoints import how_to_make, load
    from ttdg.newsite.inputs import PIXELS, find_files
    from ttdg.newsite.site_check import LEAST, check_site
    from ttdg.safety import NO_FINGERPRINT

    loaded = load(model, device)
    if "fingerprint" not in loaded.parts:
        raise UserError(f"{NO_FINGERPRINT[:-1]}; {how_to_make('fingerprint')}")
    found = find_files(images, Path(os.devnull))  # there is no output folder to leave out
    drift = check_site(loaded, found.images, most_pixels=PIXELS, workers=workers).drift
    if drift is None:
        raise UserError(
            f"the distance needs at least {LEAST} images that can be read and are not black, of one colour or noise, "
            "and fewer are there; name a folder with more images"
        )
    if as_json:
        typer.echo(json.dumps(drift.to_dict(), indent=2))
        return
    typer.echo(drift.sentence())
    longest = max(*drift.by_group.values(), 1e-9)
    width = max(map(len, drift.by_group))
    for name, value in drift.by_group.items():
        typer.echo(f"{name:<{width}}  {value:5.2f}  {'█' * round(BAR * value / longest)}")
