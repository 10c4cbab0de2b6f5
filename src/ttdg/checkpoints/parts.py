"""What a method needs from source time besides the network: a part, stored beside the checkpoint's weights.

A part is a value: tensors and the settings that say what to build from them. The network's own weights stay those
that every method uses. `<name>.safetensors` holds both, how it was fitted, the hash of its tensors, and that of the
weights it was fitted to.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ttdg.errors import UserError
from ttdg.files import atomic_file
from ttdg.types import Part

RESERVED = "model"  # the network itself
COMMANDS = {"prior": "ttdg fit-prior", "judge": "ttdg fit-judge"}  # parts with a command of their own


def how_to_make(name: str) -> str:
    """What to do to have the part: its own command, or the training's, which then fits what is not there yet."""
    if name in COMMANDS:
        return f"make it with `{COMMANDS[name]}`"
    return f"give the same `ttdg train` command again with `--with {name}`"


def fit_text(part: Part) -> str:
    """How it was fitted; nothing where its file is from before that was stored."""
    return ", ".join(f"{name} {value}" for name, value in part.fitted.items())


def part_digest(part: Part) -> str:
    """A hash of a part's tensors, for one that was fitted with it."""
    hashed = hashlib.sha256()
    for name in sorted(part.tensors):
        hashed.update(name.encode())
        hashed.update(_bytes(part.tensors[name]))
    return hashed.hexdigest()


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """A hash of all that a file says in tensors: names, types, shapes, bytes. (`digest` stays the narrower one: judges
    store it of their priors.)"""
    hashed = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        hashed.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        hashed.update(_bytes(value))
    return hashed.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def save_part(folder: Path, name: str, part: Part, network_sha256: str) -> Path:
    """Write `name` beside the checkpoint in `folder`, for the network whose weights have that hash."""
    from safetensors.torch import save_file

    assert name != RESERVED
    tensors = {key: value.detach().cpu().contiguous() for key, value in part.tensors.items()}
    about = {
        "settings": json.dumps(dict(part.settings)),
        "fitted": json.dumps(dict(part.fitted)),
        "network": network_sha256,
        "sha256": content_hash(tensors),
    }
    with atomic_file(path := folder / f"{name}.safetensors") as temporary:
        save_file(tensors, temporary, metadata=about)
    return path


def load_parts(folder: Path, network_sha256: str) -> dict[str, Part]:
    """Every part in the folder. One fitted to other weights is an error: its answers would be noise."""
    return {
        path.stem: _load(path, network_sha256)
        for path in sorted(folder.glob("*.safetensors"))
        if path.stem != RESERVED and not path.name.startswith(".")
    }


def required_parts(method: str, needs: tuple[str, ...], parts: Mapping[str, Part]) -> list[Part]:
    """The parts a method needs, in its order; a missing one is an error that says how to make it."""
    for name in needs:
        if name not in parts:
            raise UserError(
                f"method {method!r} needs the part {name!r} beside the checkpoint; {how_to_make(name)}"
            )
    return [parts[name] for name in needs]


def _load(path: Path, network_sha256: str) -> Part:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            settings, fitted = json.loads(about["settings"]), json.loads(about.get("fitted", "{}"))
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} is not a part of a checkpoint ({error!r}); remove it, then {how_to_make(path.stem)}"
        ) from None
    if "sha256" in about and about["sha256"] != content_hash(tensors):  # older files say none
        raise UserError(
            f"{path} is damaged: its tensors are not those that were written; copy it again, or remove it, "
            f"then {how_to_make(path.stem)}"
        )
    if about.get("network") != network_sha256:
        raise UserError(
            f"{path} was fitted to other weights than those in {path.parent}; remove it, "
            f"then {how_to_make(path.stem)}"
        )
    return Part(tensors, settings, fitted)
