"""Building an adapter from a network, the name of a method and its options."""

import copy
import random
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from ttdg.adaptation.adapter import Adapter
from ttdg.adaptation.answer_views import effective_views, with_views
from ttdg.adaptation.registry import METHODS, check_applies, checked
from ttdg.adaptation.statistics_base import BASES, effective_statistics
from ttdg.adaptation.unusable import guarded
from ttdg.checkpoints import how_to_fit
from ttdg.errors import UserError, suggestion
from ttdg.networks import Classifier, batchnorm
from ttdg.types import Part


@runtime_checkable
class Trained(Protocol):
    """A trained network with the parts that were fitted to it, such as a loaded checkpoint."""

    @property
    def network(self) -> nn.Module:
        """The source network."""
        ...

    @property
    def parts(self) -> Mapping[str, Part]:
        """Fitted parts by name."""
        ...


def adapt(model: nn.Module | Trained, method: str, *, views: str | int = "plain", **options: Any) -> Adapter:
    """Build an adapter around a copy of the network.

    Call the adapter with a batch of images to adapt and get the logits; `adapter.reset()` restores the source model.
    An image with values that are not finite changes nothing and is answered with zeros (`ttdg.adaptation.unusable`).

    Args:
        model: any module that maps images to logits, or a loaded checkpoint. Methods with parts from source time need
            the checkpoint.
        method: a key of `METHODS`.
        views: "flips" averages the answers over the image and its mirror image, "scales" also over three sizes
            (`ttdg.adaptation.answer_views`). A number is the option `views` of the methods that have one.
        **options: options of the method; `defaults(method)` lists them.
    """
    if isinstance(views, str):
        return build_adapter(model, method, options, views)
    return build_adapter(model, method, {**options, "views": views})


def build_adapter(
    model: nn.Module | Trained,
    method: str,
    options: Mapping[str, Any],
    views: str = "plain",
    statistics: str = "own",
) -> Adapter:
    """Do the same as `adapt`, with the options as a mapping, so that none can be mistaken for another argument.

    `statistics` puts a method that adapts on batch statistics on another base (`ttdg.adaptation.statistics_base`).
    """
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}{suggestion(method, METHODS)}")
    values = {name: checked(method, name, value) for name, value in options.items()}
    network, parts = (model, {}) if isinstance(model, nn.Module) else (model.network, model.parts)
    if isinstance(network, Classifier):
        check_applies(method, "classification")
    fitted = required_parts(method, METHODS[method].parts, parts)
    views = effective_views(METHODS[method], views)  # raises for a wrong name before the network is copied
    own = copy.deepcopy(network)
    if statistics != "own" and (base := effective_statistics(METHODS[method], statistics)) != "own":
        batchnorm.replace_batch(own, BASES[base])
    build = partial(METHODS[method].build, own, *fitted, **values)
    adapter = guarded(build, network)
    if views == "plain":
        return adapter
    return with_views(adapter, METHODS[method], views, values.get("head", "softmax"))


def required_parts(method: str, needs: tuple[str, ...], parts: Mapping[str, Part]) -> list[Part]:
    """The parts that a method needs, in the order of `needs`; raises `UserError` if one is missing."""
    for name in needs:
        if name not in parts:
            raise UserError(
                f"method {method!r} needs the part {name!r}, which this model does not have; {how_to_fit(name)}"
            )
    return [parts[name] for name in needs]


def seed_all(seed: int) -> None:
    """Seed every random generator that a method may use."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)
