"""The command `ttdg export`, which writes a source or adapted network as one file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ttdg.cli.options import SetOption, parse_settings
from ttdg.cli.progress import progress_bars
from ttdg.errors import UserError

if TYPE_CHECKING:
    from ttdg.adaptation import Adapter
    from ttdg.checkpoints import Model


def export_command(
    model: Annotated[str, typer.Argument(help="Checkpoint folder, or [bold]demo[/bold].")],
    onnx: Annotated[Path | None, typer.Option(help="ONNX file to write.", show_default=False)] = None,
    torch: Annotated[
        Path | None, typer.Option(help="Program of torch.export to write (.pt2).", show_default=False)
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images", "-i", help="Folder of a new site, which is learned first.", show_default=False
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Method that learns the site: self-training (default) or universe.", show_default=False
        ),
    ] = None,
    settings: SetOption = None,
) -> None:
    """Export a network with its card: the source network, or one that learned the images of a new site.

    The file takes normalised images of the card's size, in batches of any length, and returns logits. It is run and
    compared with the network: ONNX with onnxruntime where that is installed. Of the method [bold]universe[/bold] the
    adapted network is exported, without its choice between predictions.

    Example: [bold]ttdg export models/no-etis --onnx no-etis.onnx[/bold]
    """
    from ttdg.checkpoints import load
    from ttdg.foreign import export

    path = onnx or torch
    if path is None or (onnx is not None and torch is not None):
        raise UserError("name one file to write: with --onnx or with --torch")
    loaded = load(model)
    card = loaded.card.to_dict()
    source: "Model | Adapter" = loaded
    if images is None and (method or settings):
        raise UserError(
            "--method and --set say how a site is learned; name its folder with --images, or leave them out"
        )
    if images is not None:
        method = method or "self-training"
        source = _learned(loaded, images, path, method, settings)
        card |= {"adapted": {"method": method, "options": parse_settings(settings)}}
    checked = export(
        source, path, _example(loaded), format="onnx" if onnx is not None else "torch", card=card
    )
    typer.echo(f"{path}: {path.stat().st_size / 1e6:.2f} MB. {checked}")


def _example(model: "Model"):  # type: ignore[no-untyped-def]
    import torch

    size = model.card.benchmark.size
    return torch.rand(2, model.card.network.channels, size, size)


def _learned(model: "Model", images: Path, out: Path, method: str, settings: list[str] | None) -> "Adapter":
    """An adapter that has learned all images of a folder."""
    from ttdg.adaptation import Exportable, SiteLearner, build_adapter
    from ttdg.newsite.learning import read_site

    adapter = build_adapter(model, method, parse_settings(settings))
    if not (isinstance(adapter, SiteLearner) and isinstance(adapter, Exportable)):
        raise UserError(
            f"method {method!r} leaves no single network to export; use --method self-training or universe"
        )
    with progress_bars("learning") as (learning,):
        adapter.learn(read_site(model, images, out), learning)
    return adapter
