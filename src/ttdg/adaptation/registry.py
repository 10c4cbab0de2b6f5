"""The table of methods. To add a method, write one file and add one line here."""

import inspect
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ttdg.adaptation.adapter import Method
from ttdg.adaptation.judge import method as judge
from ttdg.adaptation.methods import (
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
    vptta,
)
from ttdg.adaptation.options import Range
from ttdg.adaptation.site_learning import self_training
from ttdg.adaptation.source_free import cbmt, cpr, dpl, upl_sfda
from ttdg.adaptation.universe import choice, gradient, literal
from ttdg.adaptation.universe import method as universe
from ttdg.errors import UserError, suggestion

SEGMENTATION = "segmentation"  # the task of a benchmark, and what methods need that work on regions or pixels

METHODS: dict[str, Method] = {
    "source": source.METHOD,
    "norm": norm.METHOD,
    "alpha-bn": alpha_bn.METHOD,
    "tent": tent.METHOD,
    "universe": universe.METHOD,
    "universe-choice": choice.METHOD,
    "judge": judge.METHOD,
    "universe-gradient": gradient.METHOD,
    "universe-literal": literal.METHOD,
    "self-training": self_training.METHOD,
    "cbmt": cbmt.METHOD,
    "dpl": dpl.METHOD,
    "upl-sfda": upl_sfda.METHOD,
    "cpr": cpr.METHOD,
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


def reconstructions(methods: Iterable[str]) -> list[str]:
    """Return those of the named methods that are reconstructions, without repetitions."""
    return [name for name in dict.fromkeys(methods) if name in METHODS and METHODS[name].reconstructed]


def needs_tissues(method: str) -> bool:
    """Return True if the method needs universe points that belong to tissues; the paper's literal training has none."""
    return "prior" in METHODS[method].parts and method != "universe-literal"


def applies(method: str, task: str) -> bool:
    """Return True if the method can adapt a network of this task."""
    return task == SEGMENTATION or SEGMENTATION not in METHODS[method].needs


def check_applies(method: str, task: str) -> None:
    """Raise `UserError` if the method cannot adapt a network of this task."""
    if not applies(method, task):
        known = ", ".join(name for name in METHODS if applies(name, task))
        raise UserError(
            f"method {method!r} works on the regions and pixels of a segmentation, and a classifier gives one class "
            f"for a whole image; choose another method ({known})"
        )


def defaults(method: str) -> dict[str, Any]:
    """Return the options of a method with their default values, read from its factory."""
    parameters = inspect.signature(METHODS[method].build).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def checked(method: str, name: str, value: Any) -> Any:
    """Return the value of an option, converted to the annotated type; raise `UserError` if it is not allowed."""
    if name not in (options := defaults(method)):
        raise UserError(f"method {method!r} has no option {name!r}{suggestion(name, options)}")
    hint, what = get_type_hints(METHODS[method].build)[name], f"option {name} of {method!r}"
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UserError(f"{what} must be one of {', '.join(get_args(hint))}, not {value!r}")
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        value = float(value)  # also of NumPy's float64
    elif isinstance(hint, type) and type(value) is not hint:
        yaml = "; write 1e-3 as 1.0e-3 or 0.001" if hint is float and isinstance(value, str) else ""
        raise UserError(
            f"{what} must be of type {hint.__name__}, such as {options[name]!r}, not {value!r}{yaml}"
        )
    bounds = _range(method, name)
    if bounds is not None and value not in bounds:
        raise UserError(f"{what} must be {bounds}, not {value!r}")
    return value


def allowed(method: str, name: str) -> str:
    """Return the allowed values of an option in words; empty if every value of the default's type is allowed."""
    hint = get_type_hints(METHODS[method].build)[name]
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    if hint is bool:
        return "true or false"
    bounds = _range(method, name)
    return "" if bounds is None else str(bounds)


def _range(method: str, name: str) -> Range | None:
    option = METHODS[method].options.get(name)
    return None if option is None else option.range
