"""The command `ttdg predict`."""

from collections.abc import Iterator, Mapping
from itertools import islice
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from ttdg.cli.options import (
    BatchOption,
    DeviceOption,
    ModelOption,
    SetOption,
    ViewsOption,
    WorkersOption,
    options_text,
    output_folder,
    parse_settings,
)
from ttdg.errors import UserError

if TYPE_CHECKING:
    from ttdg.newsite import FolderResult

STREAMS = ("online", "folder")
PARTLY = 3  # exit status if some files were set aside
SHOWN = 20  # files that were set aside and are printed
SHARDS_PANEL = "Many processes or machines"  # heading of some options


def predict_command(
    model: ModelOption,
    images: Annotated[
        list[Path],
        typer.Option(
            "--images", "-i", help="Folder of images, searched at any depth, or a file; may be repeated."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Folder for masks, overlays and the manifest.", callback=output_folder
        ),
    ],
    method: Annotated[
        str,
        typer.Option(
            help="auto, judge, universe, source, norm, …; auto chooses source, judge or universe by the distance of "
            "the site and by the parts that the model has.",
        ),
    ] = "auto",
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
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="CPU threads, with shards those of each; default: one per core, cores ÷ shards, 1 on a cluster.",
            show_default=False,
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Answer all files again and replace the answers in OUT.")
    ] = False,
    gate: Annotated[
        bool | None,
        typer.Option(
            "--gate/--no-gate",
            help="Replace answers that are expected to be worse than the source model's. Default: for methods that do "
            "not judge their own answers, if the model has a judge.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="Yaml file with the bounds of the gate, which it then uses.", show_default=False),
    ] = None,
    max_megapixels: Annotated[
        float, typer.Option(min=0.001, help="Set larger images aside. Memory grows with this limit.")
    ] = 89.0,
    probabilities: Annotated[
        bool,
        typer.Option("--probabilities", help="Also write the probability of each label, as 8-bit PNG files."),
    ] = False,
    keep_identity: Annotated[
        bool,
        typer.Option(
            "--keep-identity", help="Copy patient and study from DICOM images into their segmentations."
        ),
    ] = False,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Cut the images into this many slices, which processes or machines answer at the same time. For "
            "methods without memory, and for the stream folder after learning.",
            show_default=False,
            rich_help_panel=SHARDS_PANEL,
        ),
    ] = None,
    executor: Annotated[
        str, typer.Option(help="Where shards run: local, slurm or ray.", rich_help_panel=SHARDS_PANEL)
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            help="Address of a running Ray cluster.", show_default=False, rich_help_panel=SHARDS_PANEL
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(help="SLURM partition.", show_default=False, rich_help_panel=SHARDS_PANEL),
    ] = None,
    minutes: Annotated[
        int,
        typer.Option(min=1, help="Time limit of a SLURM job, in minutes.", rich_help_panel=SHARDS_PANEL),
    ] = 240,
    gpus: Annotated[
        int,
        typer.Option(
            min=0, help="With 1, every shard on a cluster gets a GPU.", rich_help_panel=SHARDS_PANEL
        ),
    ] = 0,
) -> None:
    """Segment images and adapt to them; each mask has the size of its image.

    PNG, JPEG, BMP, TIFF (8 or 16 bit, float), WebP, DICOM and NIfTI are read, recognised by their content if the suffix
    is another one (NIfTI by its suffix .nii or .nii.gz alone). Every other file is set aside with a reason in
    OUT/manifest.csv (exit status 3). OUT/manifest.json says what the mask values mean.

    Masks have the name and size of their image: OUT/masks/NAME.png, for NIfTI NAME.nii.gz or NAME.nii as the image,
    with the same affine, and for DICOM the segmentation (SEG) NAME.dcm. The slices of a DICOM series share one. A
    segmentation refers to its images by UIDs and names no patient unless --keep-identity is given.

    A second call resumes an interrupted one. Finished answers and masks that were changed by hand stay unless --again
    is given; new files are added.

    Example: [bold]ttdg predict -m models/no-etis -i new-site/ -o out/ --method judge[/bold]

    Learn all images, then answer them: [bold]ttdg predict -m models/no-etis -i new-site/ -o out/ --method universe
    --stream folder[/bold]

    In two processes, with the same masks: [bold]ttdg predict -m models/no-etis -i new-site/ -o out/ --method judge
    --shards 2[/bold]
    """
    from ttdg.checkpoints import load
    from ttdg.cli.progress import progress_bars
    from ttdg.newsite import predict
    from ttdg.newsite.run import idle_options_note, unknown_drift
    from ttdg.safety.policy import read_policy

    options = parse_settings(settings)
    if stream not in (None, *STREAMS):
        raise UserError(f"--stream is {' or '.join(STREAMS)}, not {stream!r}")
    if policy is not None and gate is False:
        raise UserError("--policy sets the rules of the gate, and --no-gate leaves it out; give one of them")
    if not isfinite(max_megapixels):
        raise UserError(f"--max-megapixels is a number, not {max_megapixels}; for no limit give a large one")
    sharding = None
    if shards is not None:
        from ttdg.newsite.shards import Sharding

        sharding = Sharding(
            shards, _whole_path(model), executor, device, threads, address, partition, minutes, gpus
        )
    elif executor != "local":
        raise UserError(f"the executor {executor} runs shards; give their number with --shards")
    elif threads is not None:
        import torch

        torch.set_num_threads(threads)
    if note := idle_options_note(method, stream, options):
        typer.echo(note, err=True)
    with progress_bars("learning", "segmenting") as (learning, progress):
        loaded = load(model, device)
        outcome = predict(
            loaded, images, out, method=method, options=options, views=views, stream=stream, batch=batch,
            overlays=overlays, workers=workers, again=again, gate=read_policy(policy) if policy else gate,
            most_pixels=round(1e6 * max_megapixels), probabilities=probabilities, keep_identity=keep_identity,
            progress=progress, learning=learning, shards=sharding,
        )  # fmt: skip
    typer.echo(
        f"model {model} ({loaded.card.sha256[:12]}), method {outcome.method} with {options_text(options)}"
        f"{f' (auto: {outcome.choice})' if outcome.choice else ''}, stream {outcome.stream}"
    )
    typer.echo(f"{outcome.manifest}: {outcome.done} segmented, {outcome.kept} kept from before")
    typer.echo(f"{outcome.report}: verdict, order of review and overlays")
    typer.echo(unknown_drift(loaded) if outcome.drift is None else outcome.drift.sentence())
    for line in _about_files(outcome, out):
        typer.echo(printable(line))
    for file, reason in islice(outcome.set_aside.items(), SHOWN):
        typer.echo(printable(f"set aside {file}: {reason}"), err=True)
    if (others := len(outcome.set_aside) - SHOWN) > 0:
        typer.echo(f"set aside {others} more; {outcome.manifest} has all with their reasons", err=True)
    raise typer.Exit(PARTLY if outcome.set_aside else 0)


def _about_files(outcome: "FolderResult", out: Path) -> Iterator[str]:
    """Yield what a person should know of some files; a sentence names a few of them, and `manifest.csv` all."""
    from ttdg.newsite.result import by_reason, name_some

    if outcome.expected_dice:
        yield _expected_dice(outcome.expected_dice)
    for remark, count in outcome.remarks.items():
        yield f"{remark} ({count} of {outcome.images} images)"
    for reason, files in by_reason(outcome.unusual).items():
        yield f"not this kind of image, and answered alone: {name_some(files)} ({reason})"
    if outcome.edited:
        yield f"kept the masks of {name_some(outcome.edited)}, which were changed by hand; --again replaces them"
    if outcome.removed:
        yield f"no longer among the images, but their masks are in {out}: {name_some(outcome.removed)}"
    if outcome.unnamed:
        yield f"masks in {out} that no row of manifest.csv names: {name_some(outcome.unnamed)}"
    if outcome.outputs:
        yield f"not read, because an earlier prediction wrote it: {name_some(outcome.outputs)}"
    if outcome.without_maps:
        yield (
            f"{outcome.without_maps} finished answers have no probability maps; give --again to write them, which "
            "answers all files again"
        )


def _whole_path(model: str | Path) -> str:
    """Return the path of a model as other processes need it, or its name if it is included in the package."""
    from ttdg.checkpoints import is_included

    return str(model) if is_included(model) else str(Path(model).resolve())


def printable(text: str) -> str:
    """Return a text without control characters and undecodable bytes of file names."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _expected_dice(dice: Mapping[str, float], most: int = 3) -> str:
    """Return the median expected Dice and the files with the lowest, which a person should check first."""
    worst = sorted(dice.items(), key=lambda item: item[1])[:most]
    named = ", ".join(f"{file} ({value:.2f})" for file, value in worst)
    return f"expected Dice: median {median(dice.values()):.2f}; look first at {named}"
