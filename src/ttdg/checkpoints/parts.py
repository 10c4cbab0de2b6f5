"""Parts: what a method needs besides the network, fitted on source images and stored in the checkpoint folder.

A part consists of tensors and of settings that tell how to use them. It does not change the weights of the network. The
file `<name>.safetensors` contains the tensors and settings, how the part was fitted, the hash of the tensors, and the
hash of the network weights for which the part was fitted.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from ttdg.errors import UserError
from ttdg.files import atomic_file
from ttdg.types import Part

RESERVED = "model"  # file name of the network's weights
COMMANDS = {
    "prior": "ttdg fit-prior",
    "judge": "ttdg fit-judge",
    "fingerprint": "ttdg fit-fingerprint",
}  # parts that have their own command
FOREIGN = ("prior", "judge", "output")  # parts that `ttdg.fit` makes for a network from outside the project


def how_to_make(name: str) -> str:
    """How to fit a part on the command line: with its own command, or with `ttdg train`."""
    if name in COMMANDS:
        return f"make it with `{COMMANDS[name]}`"
    return f"give the same `ttdg train` command again with `--with {name}`"


def fit_description(part: Part) -> str:
    """How a part was fitted, as text; empty for files of older versions, which do not store it."""
    return ", ".join(f"{name} {value}" for name, value in part.fitted.items())


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, dtypes, shapes and bytes of tensors.

    `Part.digest` ignores dtypes and shapes; it must not change, because stored judges contain it.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(_bytes(value))
    return digest.hexdigest()


def how_to_fit(name: str, *, foreign: bool = False) -> str:
    """Remedy for a missing or damaged part, as the end of an error message.

    Args:
        name: the part.
        foreign: True for a network from outside the project, which has no checkpoint folder.
    """
    if foreign and name in FOREIGN:
        return "fit the parts of this network with `ttdg.fit`, and give its result as `parts`"
    if foreign:
        return (
            f"`ttdg.fit` does not make this part; adapt a checkpoint of `ttdg train --with {name}`, "
            "or use another method"
        )
    command = f" with `{COMMANDS[name]}`" if name in COMMANDS else ""
    return f"fit the part {name!r}{command}"


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


@contextmanager
def reading_part(name: str) -> Iterator[None]:
    """Turn the errors of a block that reads the tensors and settings of a part into a `UserError`.

    Only that belongs into the block: other errors would be taken for damage of the part.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, UserError | torch.OutOfMemoryError):
            raise
        own = "; for a network of your own, with `ttdg.fit`" if name in FOREIGN else ""
        raise UserError(
            f"the part {name!r} of this model cannot be used ({error!r}); {how_to_fit(name)} again{own}"
        ) from error


def save_part(folder: Path, name: str, part: Part, network_sha256: str) -> Path:
    """Write a part to a checkpoint folder; `network_sha256` is the hash of the weights it was fitted for."""
    from safetensors.torch import save_file

    assert name != RESERVED
    tensors = {key: value.detach().cpu().contiguous() for key, value in part.tensors.items()}
    about = {
        "settings": json.dumps(dict(part.settings)),
        "fitted": json.dumps(dict(part.fitted)),
        "network": network_sha256,
        "sha256": content_hash(tensors),
    }
    about["settings_sha256"] = _settings_hash(about)
    with atomic_file(path := folder / f"{name}.safetensors") as temporary:
        save_file(tensors, temporary, metadata=about)
    return path


def _settings_hash(about: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps([about["settings"], about.get("fitted", "{}")]).encode()).hexdigest()


def load_parts(folder: Path, network_sha256: str, *, foreign: bool = False) -> dict[str, Part]:
    """Load all parts of a folder; raises `UserError` if one was fitted for other weights.

    Args:
        folder: a checkpoint folder, or one that `ttdg.fit` wrote.
        network_sha256: hash of the weights of the network.
        foreign: True for a network from outside the project; error messages then name `ttdg.fit`.
    """
    return {
        path.stem: _load(path, network_sha256, foreign)
        for path in sorted(folder.glob("*.safetensors"))
        if path.stem != RESERVED and not path.name.startswith(".")
    }


def _load(path: Path, network_sha256: str, foreign: bool) -> Part:
    from safetensors import SafetensorError, safe_open

    remedy = how_to_fit(path.stem, foreign=foreign)
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            settings, fitted = json.loads(about["settings"]), json.loads(about.get("fitted", "{}"))
        if not isinstance(settings, dict) or not isinstance(fitted, dict):
            raise ValueError("no settings")
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not a part of a checkpoint ({error!r}); remove the file, then {remedy}"
        ) from None
    hashes = {"sha256": content_hash(tensors), "settings_sha256": _settings_hash(about)}
    if any(about.get(name, value) != value for name, value in hashes.items()):  # older files have no hash
        raise UserError(
            f"{path} is damaged: its tensors or settings do not have the stored hash; copy the file again, or remove "
            f"it, then {remedy}"
        )
    if about.get("network") != network_sha256:
        owner = (
            "of this network; load the weights that it was fitted for, or"
            if foreign
            else f"in {path.parent};"
        )
        raise UserError(
            f"{path} was fitted for other weights than those {owner} remove the file, then {remedy}"
        )
    return Part(tensors, settings, fitted)
