"""Fitting of the parts that methods need from training time.

A fitter receives the source model, the source images and the settings of the yaml file, and never a target image.
An entry in `FITTERS` lets a run use every method that needs the part. A prior needs no fitter: it is trained with
the source model.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ttdg.adaptation.judge.readings import READING_SETS
from ttdg.adaptation.universe.fit import fit_judges
from ttdg.arguments import checked_keyword
from ttdg.checkpoints import Model
from ttdg.data import Sources
from ttdg.errors import UserError, suggestion
from ttdg.training.parts import EXTRAS, fit_part
from ttdg.types import Part


@dataclass(frozen=True)
class FitSource:
    """What a fitter may use: the source model, its training and held-out images, and a seed."""

    model: Model
    images: Sources
    seed: int

    @property
    def device(self) -> torch.device:
        """Device of the network's parameters."""
        return next(self.model.network.parameters()).device


@dataclass(frozen=True)
class Fitter:
    """How a part is fitted.

    Attributes:
        function: Function whose keyword-only parameters, except `progress` and `keep`, are the allowed settings.
        fit: Makes the part from the source model and the settings.
    """

    function: Callable[..., Part]
    fit: Callable[[FitSource, Mapping[str, Any]], Part]

    def settings(self) -> dict[str, inspect.Parameter]:
        """Return the allowed settings by name."""
        parameters = inspect.signature(self.function).parameters.values()
        return {
            p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("progress", "keep")
        }


CHOICES: Mapping[str, Mapping[str, Any]] = {
    "readings": READING_SETS
}  # settings whose value is a key of a table


def _fit_extra(name: str, source: FitSource, settings: Mapping[str, Any]) -> Part:
    model, images = source.model, source.images
    options = {"seed": source.seed, **settings}
    return fit_part(name, model.network, images.train, model.card.benchmark, source.device, **options)


def _fit_judge(source: FitSource, settings: Mapping[str, Any]) -> Part:
    from ttdg.prior import MorphologyPrior

    model, images = source.model, source.images
    if "prior" not in model.parts:
        raise UserError("a judge needs a prior, and this model has none; set `universe: 0.1` in the recipe")
    prior = MorphologyPrior.from_part(model.parts["prior"]).to(source.device)
    options = {"controls": True, "seed": source.seed, **settings}  # a table may ask for the control judges
    part = fit_judges(model.network, prior, images.train, images.held_out, model.card.benchmark, **options)
    return replace(part, fitted=options)


FITTERS: dict[str, Fitter] = {
    **{name: Fitter(fit_part, partial(_fit_extra, name)) for name in EXTRAS},
    "judge": Fitter(fit_judges, _fit_judge),
}


def check_part_settings(part: str, settings: Mapping[str, Any]) -> None:
    """Raise a UserError if the part is unknown, or a setting or its value is not allowed."""
    if part not in FITTERS:
        raise UserError(
            f"a run fits no part {part!r}{suggestion(part, FITTERS)}; correct or remove it in `parts:`"
        )
    known = FITTERS[part].settings()
    for name, value in settings.items():
        if name not in known:
            raise UserError(
                f"part {part!r} has no setting {name!r}{suggestion(name, known)}; correct or remove it in the yaml file"
            )
        choices = CHOICES.get(name, ())
        checked_keyword(
            known[name], value, f"{name} of part {part!r}", "; change it in the yaml file", choices
        )


def parts_from_training(recipe: Mapping[str, Any]) -> frozenset[str]:
    """Return the parts that a training with this recipe makes."""
    return frozenset({"prior"} if recipe["universe"] else ())


def check_fittable(method: str, needed: Mapping[str, object]) -> None:
    """Raise a UserError if a method needs a part that is not fitted in a run."""
    for name in needed:
        if name not in FITTERS:
            raise UserError(
                f"method {method!r} needs the part {name!r}, which neither the recipe nor a fitter makes; "
                "remove the method, or train a prior with `universe: 0.1` in the recipe if it needs a prior"
            )


def fit_from_yaml(part: str, source: FitSource, settings: Mapping[str, Any]) -> Part:
    """Fit a part with the settings of the yaml file."""
    check_part_settings(part, settings)
    return FITTERS[part].fit(source, settings)
