"""Networks by import path, with weights from a file that cannot run code."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ttdg.errors import UserError, suggestion
from ttdg.networks import load_state, read_weights


def make_network(path: str, settings: Mapping[str, Any] | None = None) -> nn.Module:
    """Import `package.module:name` and return the network, which `name` is or makes when it is called.

    Args:
        path: the module, and the name of a class, of a function, or of a network in it.
        settings: arguments of the class or function.
    """
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        raise UserError(
            f"name a network as package.module:name, such as my_project.networks:make, not {path!r}"
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"cannot import {module_name} ({error}); install the package, or run in the folder that holds it"
        ) from None
    if not hasattr(module, name):
        raise UserError(f"{module_name} has no {name!r}{suggestion(name, _makers(module))}")
    made = getattr(module, name)
    if isinstance(made, nn.Module):
        return made
    try:
        network = made(**settings or {})
    except TypeError as error:
        raise UserError(f"{path} cannot be called ({error}); give its arguments as settings") from None
    if not isinstance(network, nn.Module):
        raise UserError(
            f"{path} returns a {type(network).__name__}, not a torch.nn.Module; name another function"
        )
    return network


def load_network(path: str, weights: Path | None, settings: Mapping[str, Any] | None = None) -> nn.Module:
    """Make a network and load its weights: safetensors, or a pickled state dict read with `weights_only=True`."""
    network = make_network(path, settings)
    if weights is not None:
        load_state(
            network,
            read_weights(weights),
            weights,
            f"{path} makes",
            "name the network that the weights belong to",
        )
    return network.eval()


def _makers(module: Any) -> list[str]:
    """Public names of a module that could make a network."""
    return [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
