"""Options that several commands share, each said once."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttdg.errors import UserError

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
        help="polyp, fundus, a yaml file; default DATA/benchmark.yaml.",
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
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
BatchOption = Annotated[int, typer.Option(min=1, help="Images the method sees together.")]
WorkersOption = Annotated[
    int | None, typer.Option(help="Threads that read images; default: one a core.", show_default=False)
]


def open_data(data: Path | None, benchmark: str | None) -> "tuple[Benchmark, dict[str, Site]]":
    """The benchmark and its sites: DATA itself, or DATA/BENCHMARK for a folder of benchmarks such as $TTDG_DATA."""
    from ttdg.data import find_sites, load_benchmark

    root = data or (Path(os.environ["TTDG_DATA"]) if "TTDG_DATA" in os.environ else None)
    if root is None:
        raise UserError("name the benchmark folder with --data, or set TTDG_DATA")
    if not root.is_dir():
        raise UserError(f"no folder at {root}")
    if benchmark is not None and not (root / "benchmark.yaml").exists() and (root / benchmark).is_dir():
        root = root / benchmark
    return load_benchmark(benchmark, root), find_sites(root)


def choose_sites(sites: "dict[str, Site]", names: list[str]) -> "dict[str, Site]":
    from ttdg.errors import suggestion

    for name in names:
        if name not in sites:
            raise UserError(f"no site {name!r}{suggestion(name, sites)}")
    return {name: sites[name] for name in names}


def check_methods(methods: list[str], parts: "Mapping[str, Part]") -> None:
    """Is every method known, and are the parts it needs there? To be asked before the first of them runs."""
    from ttdg.adaptation import METHODS
    from ttdg.checkpoints import required_parts
    from ttdg.errors import suggestion

    for name in methods:
        if name not in METHODS:
            raise UserError(f"unknown method {name!r}{suggestion(name, METHODS)}")
        required_parts(name, METHODS[name].parts, parts)


def choose_device(device: str) -> str:
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("no GPU is usable here: torch sees none; use --device cpu")
    return device


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """`lr=1e-3` → {"lr": 0.001}: numbers and booleans are read as such, the rest is text."""
    settings: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UserError(f"--set takes NAME=VALUE, not {pair!r}")
        settings[name.strip()] = _value(value.strip())
    return settings


def options_text(options: Mapping[str, Any]) -> str:
    said = (f"{name} {f'{v:.4g}' if isinstance(v, float) else v}" for name, v in options.items())
    return ", ".join(said) or "no options"


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
