"""Export of a network as ONNX, or as a program of PyTorch, with its card; the file is compared with the network."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import Adapter, Exportable
from ttdg.adaptation.own_network.first_pass import check_tensor, first_output, shortened
from ttdg.adaptation.own_network.foreign import unwrapped
from ttdg.adaptation.own_network.output import in_channels
from ttdg.checkpoints import Model, file_hash, versions
from ttdg.errors import UserError, suggestion
from ttdg.files import atomic_file, write_text

Format = Literal["onnx", "torch"]
TOLERANCE = 1e-3  # largest difference of logits, relative to the largest logit
OPSET = 17
MOST_IMAGES = 1024  # of a batch of an exported program
RUNTIME = "onnxruntime"


def export(
    source: nn.Module | Model | Adapter,
    path: str | Path,
    images: Float[Tensor, "b c h w"] | None = None,
    *,
    format: Format = "onnx",
    card: Mapping[str, Any] | None = None,
) -> str:
    """Write a network to one file, which takes normalised images of one size in batches of any length.

    The card goes into the file and beside it, as `path` with the ending `.json`. The written file is run and must give
    the logits of the network. Of the method `universe` the adapted network is exported, without its choice between
    predictions.

    Args:
        source: a network that returns one tensor; a loaded checkpoint; or an adapter that has learned a site
            (`Exportable`).
        path: the file to write.
        images: images whose size the exported network expects; for a loaded checkpoint, those of its card by default.
        format: "onnx", or "torch" for a program of `torch.export`, which `torch.export.load` reads.
        card: what is known of the network; a loaded checkpoint has its own.

    Returns:
        How the file was checked, as a sentence.
    """
    if format not in get_args(Format):
        raise UserError(f"unknown format {format!r}{suggestion(format, get_args(Format))}")
    network, known = _network(source)
    if images is None:
        if not isinstance(source, Model):
            raise UserError("an exported network expects images of one size; give a batch of such images")
        size = source.card.benchmark.size
        images = torch.rand(2, source.card.network.channels, size, size)
    check_tensor(images, "images")
    if images.ndim != 4 or not len(images):
        raise UserError(
            f"give a batch of images (images, channels, height, width), not a tensor of shape {tuple(images.shape)}"
        )
    training = {module: module.training for module in network.modules()}
    example = images.repeat(-(-2 // len(images)), 1, 1, 1)[:2].to(next(network.parameters(), images))
    about = json.dumps(
        {**known, **(card or {}), "input": list(example.shape[1:]), "versions": versions()}, indent=2
    )
    if Path(path).is_dir():
        raise UserError(f"{path} is a folder; name the file to write")
    path, write = Path(path), _write_onnx if format == "onnx" else _write_program
    try:
        _check_output(network.eval(), example)
        with atomic_file(path) as temporary:
            write(network, example, temporary, about)
            checked = _check(network, example, temporary, format)
    except (UserError, OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        single = "" if example.dtype == torch.float32 else ", or in float32"
        raise UserError(
            f"the network cannot be exported in the format {format!r} ({shortened(error)}); export it in the other "
            f"format{single}"
        ) from error
    finally:
        for module, mode in training.items():
            module.training = mode
    described = {**json.loads(about), "file_format": format, "sha256": file_hash(path)}
    write_text(path.with_name(path.name + ".json"), json.dumps(described, indent=2) + "\n")
    return checked


def _network(source: nn.Module | Model | Adapter) -> tuple[nn.Module, dict[str, Any]]:
    """The network to export, and its card."""
    if isinstance(source, Model):
        return source.network, source.card.to_dict()
    if isinstance(source, nn.Module):
        return unwrapped(source), {}
    if isinstance(source, Exportable):
        return in_channels(source.learned_network()), {}
    if not hasattr(source, "reset"):
        raise UserError(
            f"export a network, a checkpoint that `ttdg.load` has read, or an adapter, not a value of type "
            f"{type(source).__name__}"
        )
    raise UserError(
        f"{type(source).__name__} answers each batch in another way, and no single network gives its answers; export "
        "the source network, or an adapter that learns a site, such as 'self-training'"
    )


def _check_output(network: nn.Module, example: Tensor) -> None:
    """Raise `UserError` if the network fails, or returns anything but one tensor."""
    output = first_output(network, example)
    if not isinstance(output, Tensor):
        raise UserError(
            f"the network returns a {type(output).__name__}, and one tensor of logits is exported; give a network that "
            "returns the logits alone"
        )


def _write_onnx(network: nn.Module, example: Tensor, path: Path, card: str) -> None:
    try:
        import onnx
    except ImportError:
        raise UserError(
            "exporting to ONNX needs the package onnx; install it, or export a torch program"
        ) from None
    batch = {0: "batch"}
    mha: Any = torch.backends.mha
    fused = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)  # ONNX has no operator for fused layers of transformers
    try:
        with warnings.catch_warnings():
            # The exporter that needs no further package announces its successor.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                network, (example,), path, dynamo=False, opset_version=OPSET, input_names=["images"],
                output_names=["logits"], dynamic_axes={"images": batch, "logits": batch},
            )  # fmt: skip
    finally:
        mha.set_fastpath_enabled(fused)
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {"card": card})
    onnx.save(model, path)


def _write_program(network: nn.Module, example: Tensor, path: Path, card: str) -> None:
    if isinstance(network, torch.jit.ScriptModule):
        raise UserError(
            "a program of TorchScript cannot become one of `torch.export`; give the network from which it was made, or "
            "export to ONNX"
        )
    batch = torch.export.Dim("batch", min=1, max=MOST_IMAGES)
    program = torch.export.export(network, (example,), dynamic_shapes=({0: batch},))
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={"card.json": card})


@torch.no_grad()
def _check(network: nn.Module, example: Tensor, path: Path, format: Format) -> str:
    """Compare the written file with the network on a batch of another length; raises `UserError` if they differ."""
    images = torch.cat([example, example.flip(3)])[:3]
    if format == "onnx":
        try:
            from onnxruntime import InferenceSession
        except ImportError:
            return f"The file was not checked, because the package {RUNTIME} is not installed."
        session = InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found, by = torch.from_numpy(session.run(None, {"images": images.cpu().numpy()})[0]), RUNTIME
    else:
        with path.open("rb") as file:
            found, by = torch.export.load(file).module()(images).cpu(), "torch.export"
    expected = network(images).cpu()
    difference = float((found - expected).abs().max())
    if found.shape != expected.shape or not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
        raise UserError(
            f"the exported network differs from the source by {difference:.2g} in its logits, so it was not written; "
            "export it in the other format"
        )
    return f"{by} gives the logits of the network on 3 images, up to {difference:.1g}."
