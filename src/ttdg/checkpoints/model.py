"""Checkpoints: a folder with `model.safetensors` (weights) and `model.json` (the model card).

Folders are written atomically. `load` compares the hash of the weights with the card.
"""

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
from ttdg.networks import NETWORKS, EncoderNetwork, NetworkSpec, load_state
from ttdg.networks.devices import resolve_device
from ttdg.types import Part

FORMAT = 1  # version of model.json
EMBEDDED = ("demo",)  # models that are included in the package


@dataclass(frozen=True)
class ModelCard:
    """Description of a model: architecture, benchmark, training data and recipe, validation, versions."""

    network: NetworkSpec
    benchmark: Benchmark
    sources: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # by site: number of cases, fingerprint
    recipe: Mapping[str, Any] = field(default_factory=dict)  # training settings, including the seed
    validation: Mapping[str, float] = field(
        default_factory=dict
    )  # on held-out source images: Dice by region, or accuracy
    versions: Mapping[str, str] = field(default_factory=dict)  # of Python and packages at training
    sha256: str = ""  # of model.safetensors

    def to_dict(self) -> dict[str, Any]:
        """The card as the content of `model.json`."""
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
    """A network with its card, and the parts that methods need besides the network."""

    network: EncoderNetwork
    card: ModelCard
    parts: Mapping[str, Part] = field(default_factory=dict)  # by name, such as "prior"


def save(
    folder: Path, network: EncoderNetwork, card: ModelCard, parts: Mapping[str, Part] | None = None
) -> ModelCard:
    """Write a checkpoint folder, and return the card with the hash of the weights and current versions.

    An existing folder is replaced once the new one is complete.
    """
    from safetensors.torch import save_file

    with atomic_folder(folder) as temporary:
        state = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
        save_file(state, temporary / "model.safetensors")
        card = replace(card, sha256=file_hash(temporary / "model.safetensors"), versions=versions())
        write_text(temporary / "model.json", json.dumps(card.to_dict(), indent=2) + "\n")
        for name, part in (parts or {}).items():
            save_part(temporary, name, part, card.sha256)
    return card


def is_included(path: str | Path) -> bool:
    """True if the path names an included model, and no checkpoint folder has this name."""
    return str(path) in EMBEDDED and not (Path(path) / "model.json").is_file()


def load(path: str | Path, device: str | torch.device = "cpu") -> Model:
    """Load a model from a checkpoint folder, or an included model by name ("demo"). The network is in eval mode.

    A folder that has the name of an included model is preferred if it holds a checkpoint.

    Args:
        path: The folder, or the name of an included model.
        device: A device, or its name as in `resolve_device`: "auto" prefers a GPU.
    """
    if is_included(path):
        with resources.as_file(resources.files("ttdg").joinpath("assets", str(path))) as folder:
            return load(folder, device)
    folder = Path(path)
    fields = _read_fields(folder)
    weights, sha256 = folder / "model.safetensors", fields.get("sha256", "")
    if not weights.is_file():
        raise UserError(f"{weights} is missing; copy the whole checkpoint folder, not model.json alone")
    if file_hash(weights) != sha256:
        raise UserError(
            f"{weights} does not have the hash that {folder / 'model.json'} states; copy the checkpoint again"
        )
    state, parts, card = _read_state(weights), load_parts(folder, sha256), _card(folder, fields)
    try:
        with torch.random.fork_rng(devices=[]):  # the first weights are random, and replaced
            network = NETWORKS[card.benchmark.task](card.network)
    except UserError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"{folder / 'model.json'} describes no network ({error}); copy the checkpoint again"
        ) from None
    network.to(resolve_device(device) if isinstance(device, str) else device)
    load_state(network, state, weights)
    return Model(network.eval(), card, parts)


def read_card(folder: Path) -> ModelCard:
    """Read the model card of a checkpoint folder without loading the weights."""
    return _card(folder, _read_fields(folder))


def _read_fields(folder: Path) -> dict[str, Any]:
    """Read `model.json` and check its format."""
    path = folder / "model.json"
    if not path.is_file():
        raise UserError(
            f"no checkpoint at {folder}: a checkpoint is a folder with model.json and model.safetensors; name such a "
            f"folder, or the included model {' or '.join(map(repr, EMBEDDED))}"
        )
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        version = fields.pop("format")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is not a model card ({error!r}); copy the checkpoint again") from None
    if version != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {version}, but this version of ttdg reads format {FORMAT}; use the version "
            "of ttdg that wrote the checkpoint"
        )
    if wrong := _wrong_field(fields):
        raise UserError(f"{path} has a field {wrong!r} of another kind; copy the checkpoint again")
    return fields


def _card(folder: Path, fields: Mapping[str, Any]) -> ModelCard:
    path, values = folder / "model.json", dict(fields)
    try:
        network = NetworkSpec(**values.pop("network"))
        benchmark = Benchmark.from_dict(values.pop("benchmark"), str(path))
        return ModelCard(network, benchmark, **values)
    except UserError:
        raise
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} has a missing or unknown field: {error}; copy the checkpoint again"
        ) from None


def _wrong_field(fields: Mapping[str, Any]) -> str | None:
    """Return the name of a field whose value is of another kind than `save` writes, or None."""
    for name in ("sources", "recipe", "validation", "versions"):
        if not isinstance(fields.get(name, {}), dict):
            return name
    if not all(isinstance(site, dict) for site in fields.get("sources", {}).values()):
        return "sources"
    if not all(isinstance(score, int | float) for score in fields.get("validation", {}).values()):
        return "validation"
    return None if isinstance(fields.get("sha256", ""), str) else "sha256"


def _read_state(weights: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(weights)
    except SafetensorError as error:
        raise UserError(f"{weights} cannot be read ({error}); copy the checkpoint again") from None


def file_hash(path: Path) -> str:
    """SHA-256 of a file as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect results."""
    packages = ("ttdg", "torch", "numpy")
    return {"python": platform.python_version(), **{name: _version(name) for name in packages}}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        import ttdg

        return ttdg.__version__ if package == "ttdg" else "absent"
