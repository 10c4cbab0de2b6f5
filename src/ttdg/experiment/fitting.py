"""Parts that methods need from source time, fitted by the engine where a run asks for them.

A fitter sees the source model and source images, and the settings of the run's yaml; never a target. One line in
`FITTERS` makes every method that needs the part runnable. A prior comes with the model itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ttdg.errors import UserError
from ttdg.parts import Part
from ttdg.training import Model, Sources
from ttdg.training.extras import EXTRAS, fit_part


@dataclass(frozen=True)
class Source:
    model: Model
    images: Sources
    seed: int

    @property
    def device(self) -> torch.device:
        return next(self.model.network.parameters()).device


Fitter = Callable[[Source, Mapping[str, Any]], Part]


def _extra(name: str, source: Source, settings: Mapping[str, Any]) -> Part:
    model, images = source.model, source.images
    return fit_part(
        name, model.network, images.train, model.card.benchmark, source.device, seed=source.seed, **settings
    )


def _judge(source: Source, settings: Mapping[str, Any]) -> Part:
    from ttdg.adapt.judge_fit import fit_judge
    from ttdg.prior import MorphologyPrior

    model, images = source.model, source.images
    if "prior" not in model.parts:
        raise UserError("a judge reads the prior, and this model has none; train it with `universe: 0.1`")
    prior = MorphologyPrior.from_part(model.parts["prior"]).to(source.device)
    wishes = {"seed": source.seed, **settings}
    return fit_judge(model.network, prior, images.train, images.held_out, model.card.benchmark, **wishes)


FITTERS: dict[str, Fitter] = {**{name: partial(_extra, name) for name in EXTRAS}, "judge": _judge}


def fit(part: str, source: Source, settings: Mapping[str, Any]) -> Part:
    """The part, with the settings the yaml gave; one that the fit does not know is an error in words."""
    try:
        return FITTERS[part](source, settings)
    except TypeError as error:
        if "unexpected keyword argument" in str(error):
            unknown = str(error).split("'")[1]
            raise UserError(f"part {part!r} has no setting {unknown!r}; take it out of `parts:`") from None
        raise
