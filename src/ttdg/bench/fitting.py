"""Parts that methods need from source time, fitted by the engine where a run asks for them.

A fitter sees the source model and source images, and the settings of the run's yaml; never a target. One line in
`FITTERS` makes every method that needs the part runnable. A prior comes with the model itself.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import torch

from ttdg.adaptation.judge.fit import fit_judge
from ttdg.adaptation.judge.readings import SETS
from ttdg.checkpoints import Model
from ttdg.errors import UserError, suggestion
from ttdg.training import Sources
from ttdg.training.parts.fits import EXTRAS, fit_part
from ttdg.types import Part


@dataclass(frozen=True)
class FitSource:
    model: Model
    images: Sources
    seed: int

    @property
    def device(self) -> torch.device:
        return next(self.model.network.parameters()).device


@dataclass(frozen=True)
class Fitter:
    """`fit` makes the part; the keyword options of `function` are the settings it takes, all but `progress`."""

    function: Callable[..., Part]
    fit: Callable[[FitSource, Mapping[str, Any]], Part]

    def settings(self) -> dict[str, inspect.Parameter]:
        found = inspect.signature(self.function).parameters.values()
        return {p.name: p for p in found if p.kind is p.KEYWORD_ONLY and p.name != "progress"}


CHOICES: Mapping[str, Mapping[str, Any]] = {"readings": SETS}  # settings that name one of a table


def _extra(name: str, source: FitSource, settings: Mapping[str, Any]) -> Part:
    model, images = source.model, source.images
    wishes = {"seed": source.seed, **settings}
    return fit_part(name, model.network, images.train, model.card.benchmark, source.device, **wishes)


def _judge(source: FitSource, settings: Mapping[str, Any]) -> Part:
    from ttdg.prior import MorphologyPrior

    model, images = source.model, source.images
    if "prior" not in model.parts:
        raise UserError("a judge reads the prior, and this model has none; train it with `universe: 0.1`")
    prior = MorphologyPrior.from_part(model.parts["prior"]).to(source.device)
    wishes = {"seed": source.seed, **settings}
    part = fit_judge(model.network, prior, images.train, images.held_out, model.card.benchmark, **wishes)
    return replace(part, fitted=wishes)


FITTERS: dict[str, Fitter] = {
    **{name: Fitter(fit_part, partial(_extra, name)) for name in EXTRAS},
    "judge": Fitter(fit_judge, _judge),
}


def check_part_settings(part: str, settings: Mapping[str, Any]) -> None:
    """A part, setting or value that no fit could use is an error in words, before anything runs."""
    if part not in FITTERS:
        raise UserError(
            f"a run fits no part {part!r}{suggestion(part, FITTERS)}; mend or remove it in `parts:`"
        )
    known = FITTERS[part].settings()
    for name, value in settings.items():
        if name not in known:
            raise UserError(
                f"part {part!r} has no setting {name!r}{suggestion(name, known)}; mend or remove it in the yaml"
            )
        kinds = get_args(known[name].annotation) or (known[name].annotation,)
        if name in CHOICES:
            right, wish = value in [*CHOICES[name]], f"one of {', '.join(CHOICES[name])}"
        elif int in kinds and name != "seed":
            right, wish = type(value) in kinds and (value is None or value >= 1), "a whole number, at least 1"
        else:
            right, wish = type(value) in kinds, f"{kinds[0].__name__}, such as {known[name].default!r}"
        if not right:
            raise UserError(f"{name} of part {part!r} is {wish}, not {value!r}; change it in the yaml")


def fit(part: str, source: FitSource, settings: Mapping[str, Any]) -> Part:
    """The part, with the settings the yaml gave."""
    check_part_settings(part, settings)
    return FITTERS[part].fit(source, settings)
