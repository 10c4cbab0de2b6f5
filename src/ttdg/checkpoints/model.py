"""A checkpoint is a folder: `model.safetensors` and `model.json`, written whole or not at all, hash-checked on load."""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ttdg.checkpoints.parts import load_parts, save_part
from ttdg.data import Benchmark
from ttdg.errors import UserError
from ttdg.files import atomic_folder, write_text
from ttdg.networks import NetworkSpec, Segmenter
from ttdg.types import Part

FORMAT = 1
EMBEDDED = ("demo",)


@dataclass(frozen=True)
class ModelCard:
    """What a model is and where it comes from: everything beside the weights."""

    network: NetworkSpec
    benchmark: Benchmark
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # site → cases, fingerprint
    recipe: Mapping[str, Any] = field(default_factory=dict)  # how it was trained, seed included
    validation: Mapping[str, float] = field(default_factory=dict)  # Dice on held-out source images, by region
    versions: Mapping[str, str] = field(default_factory=dict)
    sha256: str = ""  # of model.safetensors

    def to_dict(self) -> dict[str, Any]:
        values = {
            name: getattr(self, name) for name in ("sources", "recipe", "validation", "versions", "sha256")
        }
        return {
            "format": FORMAT,
            "network": asdict(self.network),
            "benchmark": self.benchmark.to_dict(),
            **values,
        }


@dataclass(frozen=True)
class Model:
    network: Segmenter
    card: ModelCard
    parts: Mapping[str, Part] = field(default_factory=dict)  # what methods need besides the network


def save(
    folder: Path, network: Segmenter, card: ModelCard, parts: Mapping[str, Part] | None = None
) -> ModelCard:
    """Write the checkpoint folder; an older one at the same place is replaced only when the new one is complete."""
    from safetensors.torch import save_file

    with atomic_folder(folder) as temporary:
        state = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
        save_file(state, temporary / "model.safetensors")
        card = replace(card, sha256=file_hash(temporary / "model.safetensors"), versions=versions())
        write_text(temporary / "model.json", json.dumps(card.to_dict(), indent=2) + "\n")
        for name, part in (parts or {}).items():
            save_part(temporary, name, part, card.sha256)
    return card


def load(path: str | Path, device: str | torch.device = "cpu") -> Model:
    """The model in a checkpoint folder, or an embedded one by name (`demo`)."""
    if str(path) in EMBEDDED and not Path(path).exists():
        with resources.as_file(resources.files("ttdg").joinpath("assets", str(path))) as folder:
            return load(folder, device)
    folder = Path(path)
    card = read_card(folder)
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise UserError(f"{weights} is missing; copy the whole checkpoint folder, not model.json alone")
    if file_hash(weights) != card.sha256:
        raise UserError(
            f"{weights} is not the file that {folder / 'model.json'} describes; copy the checkpoint again"
        )
    network = Segmenter(card.network)
    _fill(network, weights)
    return Model(network.to(device).eval(), card, load_parts(folder, card.sha256))


def read_card(folder: Path) -> ModelCard:
    path = folder / "model.json"
    if not path.is_file():
        raise UserError(
            f"no checkpoint at {folder}: a checkpoint is a folder with model.json and model.safetensors"
        )
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        found = values.pop("format")
    except (ValueError, KeyError, AttributeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} is not the description of a checkpoint ({error!r}); copy the checkpoint again"
        ) from None
    if found != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {found}, this ttdg reads {FORMAT}; use the ttdg that wrote it"
        )
    try:
        network, benchmark = (
            NetworkSpec(**values.pop("network")),
            Benchmark.from_dict(values.pop("benchmark"), str(path)),
        )
        return ModelCard(network, benchmark, **values)
    except (TypeError, KeyError) as error:
        raise UserError(f"{path} lacks or mistakes a field: {error}; copy the checkpoint again") from None


def _fill(network: Segmenter, weights: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state: dict[str, Tensor] = load_file(weights)
    except SafetensorError as error:
        raise UserError(f"{weights} cannot be read ({error}); copy the checkpoint again") from None
    wanted, found = ({name: tuple(v.shape) for name, v in s.items()} for s in (network.state_dict(), state))
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise UserError(
            f"{weights} does not fit the network that model.json describes: {len(wrong)} tensors differ, "
            f"first {wrong[0]!r} (file {found.get(wrong[0])}, network {wanted.get(wrong[0])})"
        )
    network.load_state_dict(state)


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions() -> dict[str, str]:
    packages = ("ttdg", "torch", "monai", "numpy")
    found = {name: _version(name) for name in packages}
    return {"python": platform.python_version(), **found}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        import ttdg

        return ttdg.__version__ if package == "ttdg" else "absent"
