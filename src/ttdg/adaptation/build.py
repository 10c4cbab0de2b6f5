"""Building an adapter from a network, a method's name and its options."""

import copy
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import nn

from ttdg.adaptation.adapter import Adapter
from ttdg.adaptation.registry import METHODS, checked
from ttdg.checkpoints import required_parts
from ttdg.errors import UserError, suggestion
from ttdg.types import Part


@runtime_checkable
class Trained(Protocol):
    """A loaded checkpoint: a network, and the parts that were fitted to it."""

    @property
    def network(self) -> nn.Module: ...

    @property
    def parts(self) -> Mapping[str, Part]: ...


def adapt(model: nn.Module | Trained, method: str, **options: Any) -> Adapter:
    """An adapter around a copy of the network: `logits = adapter(images)`; `adapter.reset()` is the source again.

    Any module that maps images to logits will do; methods that need parts from source time want the loaded model.
    """
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}{suggestion(method, METHODS)}")
    values = {name: checked(method, name, value) for name, value in options.items()}
    network, parts = (model, {}) if isinstance(model, nn.Module) else (model.network, model.parts)
    found = required_parts(method, METHODS[method].parts, parts)
    return METHODS[method].build(copy.deepcopy(network), *found, **values)
