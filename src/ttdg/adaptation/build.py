"""Building an adapter from a network, the name of a method and its options."""

import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from ttdg.adaptation.adapter import Adapter
from ttdg.adaptation.answer_views import effective_views, with_views
from ttdg.adaptation.inference_mode import normal_mode
from ttdg.adaptation.own_network.conversions import prepared
from ttdg.adaptation.own_network.foreign import ForeignNetwork, weights_hash
from ttdg.adaptation.own_network.output import Activation
from ttdg.adaptation.random_state import kept_random_state
from ttdg.adaptation.registry import METHODS, check_applies, checked
from ttdg.adaptation.statistics_base import BASES, effective_statistics
from ttdg.adaptation.unusable import guarded
from ttdg.checkpoints import how_to_fit, load_parts
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


def adapt(
    model: nn.Module | Trained,
    method: str,
    *,
    parts: Mapping[str, Part] | str | Path | None = None,
    output: str | int | None = None,
    activation: Activation | None = None,
    views: str | int = "plain",
    **options: Any,
) -> Adapter:
    """Build an adapter around a copy of the network.

    Call the adapter with a batch of images to adapt and get the logits; `adapter.reset()` restores the source model.
    An image with values that are not finite changes nothing and is answered with zeros (`ttdg.adaptation.unusable`).
    A network in float16 or bfloat16 is adapted in float32, and its answers are float32. One in float64 is adapted in
    float64, unless the method works in float32 alone.

    Args:
        model: any module that maps images to logits, or a loaded checkpoint.
        method: a key of `METHODS`.
        parts: what `ttdg.fit` made for this network, or the folder to which it was saved. Parts of other weights are
            refused. A loaded checkpoint has its own parts.
        output: which output of the network holds the logits: the key of a dict, or the position in a tuple.
        activation: "softmax" if the labels exclude each other, "sigmoid" if the channels are independent. Fitted parts
            know it. Without them, methods that depend on it ask for it at three or more channels.
        views: "flips" averages the answers over the image and its mirror image, "scales" also over three sizes
            (`ttdg.adaptation.answer_views`). A number is the option `views` of the methods that have one.
        **options: options of the method; `defaults(method)` lists them.
    """
    if not (parts is None and output is None and activation is None):
        if not isinstance(model, nn.Module):
            raise UserError(
                "a loaded checkpoint knows its parts and its output; give them with a network of your own only"
            )
        weights = None
        if isinstance(parts, str | Path):
            weights = weights_hash(model)
            parts = stored_parts(parts, weights)
        model = ForeignNetwork.of(model, parts, output, activation, weights)
    if isinstance(views, str):
        return build_adapter(model, method, options, views)
    return build_adapter(model, method, {**options, "views": views})


def stored_parts(folder: str | Path, weights: str) -> dict[str, Part]:
    """Load the parts that were saved for a network; raises `UserError` if they belong to weights of another hash."""
    parts = load_parts(Path(folder), weights, foreign=True)
    if not parts:
        raise UserError(f"{folder} holds no parts; name the folder that `ttdg.fit` or `ttdg fit` wrote")
    return parts


@normal_mode()
@normal_mode()
@kept_random_state()
def build_adapter(
    model: nn.Module | Trained,
    method: str,
    options: Mapping[str, Any],
    views: str = "plain",
    statistics: str = "own",
) -> Adapter:
    """Do the same as `adapt`, with the options as a mapping, so that none can be mistaken for another argument.

    Building an adapter leaves torch's global random generators as they are.

    `statistics` puts a method that adapts on batch statistics on another base (`ttdg.adaptation.statistics_base`).
    """
    if not isinstance(method, str) or method not in METHODS:
        raise UserError(f"unknown method {method!r}{suggestion(method, METHODS)}")
    values = {name: checked(method, name, value) for name, value in options.items()}
    if isinstance(model, nn.Module):
        model = ForeignNetwork.of(model)
    if not isinstance(model, Trained):
        raise UserError(
            f"adapt a network, or a checkpoint that `ttdg.load` has read, not a value of type {type(model).__name__}"
        )
    if method != "source" and isinstance(model.network, torch.jit.ScriptModule):
        raise UserError(
            f"method {method!r} cannot adapt a program of TorchScript; give the network from which it was made, or use "
            "the method 'source'"
        )
    if method != "source" and next(model.network.parameters(), None) is None:
        raise UserError(
            "the network has no parameters, so nothing can be adapted; give it with its weights, before it is frozen, "
            "or use the method 'source'"
        )
    if isinstance(model.network, Classifier):
        check_applies(method, "classification")
    foreign = isinstance(model, ForeignNetwork)
    fitted = required_parts(method, METHODS[method].parts, model.parts, foreign=foreign)
    views = effective_views(METHODS[method], views)  # raises for a wrong name before the network is copied
    network, conversions, values = prepared(model, method, values, views)
    if statistics != "own" and (base := effective_statistics(METHODS[method], statistics)) != "own":
        batchnorm.replace_batch(network, BASES[base])
    adapter = guarded(partial(METHODS[method].build, network, *fitted, **values), conversions)
    if views == "plain":
        return adapter
    return with_views(adapter, METHODS[method], views, conversions.form.activation or "softmax")


def required_parts(
    method: str, needs: tuple[str, ...], parts: Mapping[str, Part], *, foreign: bool = False
) -> list[Part]:
    """The parts that a method needs, in the order of `needs`; raises `UserError` if one is missing.

    `foreign` is True for a network from outside the project, whose parts `ttdg.fit` makes.
    """
    for name in needs:
        if name not in parts:
            owner, remedy = "network" if foreign else "model", how_to_fit(name, foreign=foreign)
            raise UserError(
                f"method {method!r} needs the part {name!r}, which this {owner} does not have; {remedy}"
            )
    return [parts[name] for name in needs]


def seed_all(seed: int) -> None:
    """Seed every random generator that a method may use."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)
