"""Test-time adaptation. `METHODS` is the table of contents; `ttdg.adapt(network, "tent")` builds one.

A method is one file with a factory and a `METHOD` that declares what it does, and one line here.
"""

import copy
import inspect
import sys
from types import ModuleType
from typing import Any

from torch import nn

from ttdg.adapt import alpha_bn, norm, source, tent
from ttdg.adapt.adapter import Adapter, Fixed, GradientAdapter, Method
from ttdg.errors import UserError, near_miss

METHODS: dict[str, Method] = {
    "source": source.METHOD,
    "norm": norm.METHOD,
    "alpha-bn": alpha_bn.METHOD,
    "tent": tent.METHOD,
}


def adapt(network: nn.Module, method: str, **options: Any) -> Adapter:
    """An adapter around a copy of `network`: `logits = adapter(images)`; `adapter.reset()` is the source again."""
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}{near_miss(method, METHODS)}")
    build = METHODS[method].build
    known = defaults(method)
    for name in options:
        if name not in known:
            raise UserError(f"method {method!r} has no option {name!r}{near_miss(name, known)}")
    return build(copy.deepcopy(network), **options)


def defaults(method: str) -> dict[str, Any]:
    """A method's options with their default values, read from its factory."""
    parameters = inspect.signature(METHODS[method].build).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


class _Callable(ModuleType):
    """`ttdg.adapt` is this package and also the verb: `ttdg.adapt(network, "tent")`."""

    def __call__(self, network: nn.Module, method: str, **options: Any) -> Adapter:
        return adapt(network, method, **options)


sys.modules[__name__].__class__ = _Callable

__all__ = ["METHODS", "Adapter", "Fixed", "GradientAdapter", "Method", "adapt", "defaults"]
