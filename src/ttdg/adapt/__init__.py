"""Test-time adaptation. `METHODS` is the table of contents; `ttdg.adapt(network, "tent")` builds one.

A method is one file with a factory and a `METHOD` that declares what it does, and one line here.
"""

import copy
import inspect
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

from torch import nn

from ttdg.adapt import (
    a3_tta,
    alpha_bn,
    cotta,
    deynet,
    dltta,
    domain_adaptor,
    dua,
    grata,
    intent,
    itta,
    judge,
    memo,
    nc_ttt,
    norm,
    pass_,
    sar,
    sictta,
    source,
    tasd_r,
    tegda,
    tent,
    universe,
    universe_gradient,
    universe_literal,
    vptta,
)
from ttdg.adapt.adapter import Adapter, Fixed, GradientAdapter, Method
from ttdg.adapt.ranges import RANGES
from ttdg.errors import UserError, near_miss
from ttdg.parts import Part, wanted

METHODS: dict[str, Method] = {
    "source": source.METHOD,
    "norm": norm.METHOD,
    "alpha-bn": alpha_bn.METHOD,
    "tent": tent.METHOD,
    "universe": universe.METHOD,
    "judge": judge.METHOD,
    "universe-gradient": universe_gradient.METHOD,
    "universe-literal": universe_literal.METHOD,
    "sar": sar.METHOD,
    "dltta": dltta.METHOD,
    "domainadaptor": domain_adaptor.METHOD,
    "dua": dua.METHOD,
    "intent": intent.METHOD,
    "cotta": cotta.METHOD,
    "memo": memo.METHOD,
    "grata": grata.METHOD,
    "tegda": tegda.METHOD,
    "a3-tta": a3_tta.METHOD,
    "vptta": vptta.METHOD,
    "pass": pass_.METHOD,
    "sictta": sictta.METHOD,
    "nc-ttt": nc_ttt.METHOD,
    "deynet": deynet.METHOD,
    "tasd-r": tasd_r.METHOD,
    "itta": itta.METHOD,
}


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
        raise UserError(f"unknown method {method!r}{near_miss(method, METHODS)}")
    values = {name: checked(method, name, value) for name, value in options.items()}
    network, parts = (model, {}) if isinstance(model, nn.Module) else (model.network, model.parts)
    found = wanted(method, METHODS[method].parts, parts)
    return METHODS[method].build(copy.deepcopy(network), *found, **values)


def reconstructions(methods: Iterable[str]) -> list[str]:
    """Those of them that nobody published in full: wherever one is named, that is said."""
    return [name for name in dict.fromkeys(methods) if name in METHODS and METHODS[name].reconstructed]


def defaults(method: str) -> dict[str, Any]:
    """A method's options with their default values, read from its factory."""
    parameters = inspect.signature(METHODS[method].build).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def checked(method: str, name: str, value: Any) -> Any:
    """The value as the option's annotation wants it; a wrong name, type or choice is an error in words."""
    if name not in (known := defaults(method)):
        raise UserError(f"method {method!r} has no option {name!r}{near_miss(name, known)}")
    hint = get_type_hints(METHODS[method].build)[name]
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UserError(
                f"option {name} of {method!r} is one of {', '.join(get_args(hint))}, not {value!r}"
            )
    elif hint is float and type(value) is int:
        value = float(value)
    elif isinstance(hint, type) and type(value) is not hint:
        raise UserError(
            f"option {name} of {method!r} is {hint.__name__}, such as {known[name]!r}, not {value!r}"
        )
    if hint in (int, float) and name in RANGES and value not in RANGES[name]:
        raise UserError(f"option {name} of {method!r} is {RANGES[name]}, not {value!r}")
    return value


def allowed(method: str, name: str) -> str:
    """What `checked` lets pass, in words; nothing where any value of the default's type will do."""
    hint = get_type_hints(METHODS[method].build)[name]
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    if hint is bool:
        return "true or false"
    return str(RANGES[name]) if hint in (int, float) and name in RANGES else ""


class _Callable(ModuleType):
    """`ttdg.adapt` is this package and also the verb: `ttdg.adapt(network, "tent")`."""

    def __call__(self, model: nn.Module | Trained, method: str, **options: Any) -> Adapter:
        return adapt(model, method, **options)


sys.modules[__name__].__class__ = _Callable

__all__ = ["METHODS", "Adapter", "Fixed", "GradientAdapter", "Method", "adapt", "defaults"]
