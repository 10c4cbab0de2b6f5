"""Options that several commands share, and functions that interpret them."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttdg.errors import UserError, suggestion

if TYPE_CHECKING:
    from ttdg.data import Benchmark, Site
    from ttdg.types import Part

ModelOption = Annotated[str, typer.Option("--model", "-m", help="Checkpoint folder, or [bold]demo[/bold].")]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", "-d", help="Benchmark folder; default $TTDG_DATA.", show_default=False),
]
BenchmarkOption = Annotated[
    str | None,
    typer.Option(
        "--benchmark",
        "-b",
        help="Name of a benchmark (`ttdg info` lists them) or a yaml file; default DATA/benchmark.yaml.",
        show_default=False,
    ),
]
MethodOption = Annotated[str, typer.Option("--method", help="source, norm, alpha-bn, tent, …")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="An option of the method, e.g. [bold]--set lr=1e-3[/bold].", show_default=False
    ),
]
ViewsOption = Annotated[
    str,
    typer.Option(
        help="Average the answers over views: flips (image and mirror image), scales (flips at three sizes), or plain."
    ),
]
StatisticsOption = Annotated[
    str,
    typer.Option(
        help="BatchNorm statistics under methods that adapt on those of the batch: eval (source), mix, batch or own."
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, or cuda:N.")]
BatchOption = Annotated[int, typer.Option(min=1, help="Number of images that are adapted to together.")]
WorkersOption = Annotated[
    int | None,
    typer.Option(min=1, help="Threads that read images; default: one per core.", show_default=False),
]


def output_folder(path: Path | None) -> Path | None:
    """Check that a folder exists or can be created; a callback for options that name an output folder."""
    if path is None:
        return None
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; name a folder for the output")
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    try:  # permissions alone do not tell it, for example of a full disk or for root
        with tempfile.TemporaryDirectory(dir=existing):
            return path
    except OSError as error:
        raise UserError(
            f"cannot write to {existing} ({error.strerror}); name another folder for the output"
        ) from None


def open_data(data: Path | None, benchmark: str | None) -> "tuple[Benchmark, dict[str, Site]]":
    """Return a benchmark and its sites; `find_benchmark_folder` explains which folders are accepted."""
    from ttdg.data import find_benchmark_folder, find_sites, load_benchmark

    root = find_benchmark_folder(data, benchmark)
    return load_benchmark(benchmark, root), find_sites(root)


def choose_sites(sites: "dict[str, Site]", names: list[str]) -> "dict[str, Site]":
    """Return the named sites in the order of their names; an unknown name raises."""
    for name in names:
        if name not in sites:
            raise UserError(f"no site {name!r}{suggestion(name, sites)}")
    return {name: sites[name] for name in names}


def check_methods(methods: list[str], parts: "Mapping[str, Part]") -> None:
    """Raise if a method is unknown or lacks a part, before any method runs."""
    from ttdg.adaptation import METHODS, required_parts

    for name in methods:
        if name not in METHODS:
            raise UserError(f"unknown method {name!r}{suggestion(name, METHODS)}")
        required_parts(name, METHODS[name].parts, parts)


def choose_device(device: str) -> str:
    """Return the PyTorch device for `--device`. PyTorch is imported only when this function is called."""
    from ttdg.networks.devices import resolve_device

    return resolve_device(device)


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """Parse `NAME=VALUE` pairs: `lr=1e-3` becomes {"lr": 0.001}. Values are numbers, booleans or text."""
    settings: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UserError(f"--set takes NAME=VALUE, not {pair!r}")
        settings[name.strip()] = _value(value.strip())
    return settings


def options_text(options: Mapping[str, Any]) -> str:
    """Return the options of a method as text, such as `lr 0.001, steps 2`."""
    items = (f"{name} {f'{v:.4g}' if isinstance(v, float) else v}" for name, v in options.items())
    return ", ".join(items) or "no options"


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
