"""Answers averaged over views of the images: mirrored, or mirrored and scaled. Any method can be wrapped.

The method adapts to the batch and answers it as without the wrapper; the other views never change its state. Its
adapted state then answers each other view, the answers are mapped back to the image, and their probabilities are
averaged. The first member of the mean is the method's own answer. For a method that answers before its update, the
other members therefore come from the state after it.

How the adapted state answers a view:

1. A method with `predict_frozen` answers with it.
2. A method that keeps no state and changes nothing is called again.
3. For all others the network answers, with its present weights and in its present BatchNorm mode.

Every view is a batch of its own, so that BatchNorm sees as many images as without the wrapper. A method that predicts
mirror images itself (`Method.flips`) is not asked to predict them again: `flips` leaves it as it is, and `scales` adds
scales only.
"""

from collections.abc import Callable, Hashable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import (
    Adapter,
    Assessment,
    FrozenPredictor,
    Images,
    Logits,
    Method,
    SelfAssessing,
)
from ttdg.adaptation.unusable import spread_rows, usable
from ttdg.adaptation.views import VIEW_SETS, AnswerView, Views
from ttdg.errors import UserError, suggestion
from ttdg.networks import batchnorm
from ttdg.networks.capture import CaptureGuard
from ttdg.networks.cuda_graph import GraphRunner

PASSED_ON = (
    "learn",
    "state",
    "load_state",
    "counts",
    "remarks",
)  # abilities of the method that the wrapper also has
STATELESS = (batchnorm.EvalMode, batchnorm.BatchMode, batchnorm.MixMode)  # modes that a CUDA graph may hold


def effective_views(method: Method, views: str) -> Views:
    """Return `views`, or "plain" if the method already predicts all of them; raise `UserError` for another name."""
    if views not in VIEW_SETS:
        raise UserError(f"unknown views {views!r}{suggestion(views, VIEW_SETS)}")
    return "plain" if views == "flips" and method.flips else views  # type: ignore[return-value]


def with_views(adapter: Adapter, method: Method, views: str, head: losses.Head = "softmax") -> Adapter:
    """Wrap an adapter of the method so that its answers are averaged over views; "plain" returns it as it is."""
    name = effective_views(method, views)
    chosen = [view for view in VIEW_SETS[name] if not (method.flips and view.mirrored)]
    if len(chosen) == 1:
        return adapter
    return AveragedAnswers(adapter, chosen, method.adapts == "nothing" and not method.memory, head)


class AveragedAnswers(Adapter):
    """An adapter whose answers are means over views. See the head of this module.

    Args:
        adapter: The method.
        views: The views; the first one is the image itself.
        again: True if the method keeps no state, so that it answers a view when it is called again.
        head: How logits become probabilities. A single channel always has a sigmoid.

    Attributes:
        own_answer: Called with the method's own answer to each batch, before the other views are answered.
    """

    def __init__(self, adapter: Adapter, views: list[AnswerView], again: bool, head: losses.Head) -> None:
        self.adapter, self.views, self.again, self.head = adapter, views, again, head
        self.network: nn.Module = adapter.network
        self.own_answer: Callable[[Logits], None] = _ignored
        for name in PASSED_ON:
            if hasattr(adapter, name):
                setattr(self, name, getattr(adapter, name))
        self._last: Assessment | None = None
        if isinstance(adapter, SelfAssessing):
            self.assessment = self._last_assessment
        self._guard = CaptureGuard(self.network)
        self._norms = [module for module in self.network.modules() if isinstance(module, _BatchNorm)]
        self._replay = GraphRunner(self._capture_state)

    def __call__(self, images: Images) -> Logits:
        """Let the method adapt to the batch and answer it; return the logits of the mean over all views."""
        own = self.adapter(images)
        self._keep_assessment()
        self.own_answer(own)
        return self._mean(own, images)

    def predict_frozen(self, images: Images) -> Logits:
        """Return the logits of the mean over all views, without an update."""
        own = self._answer(images)
        self._keep_assessment()
        self.own_answer(own)
        return self._mean(own, images)

    def reset(self) -> None:
        """Reset the method."""
        self.adapter.reset()
        self._last = None

    def _keep_assessment(self) -> None:
        """Store the assessment of the images themselves, before the method assesses another view."""
        if isinstance(self.adapter, SelfAssessing):
            self._last = self.adapter.assessment()

    def _last_assessment(self) -> Assessment | None:
        """The assessment of the images of the last batch."""
        return self._last

    @torch.no_grad()
    def _mean(self, own: Logits, images: Images) -> Logits:
        """The mean over all views of the usable images; other images keep the method's answer."""
        rows = usable(images)
        if not rows.any():
            return own
        if not rows.all():
            return spread_rows(self._mean(own[rows], images[rows]), rows)
        size = images.shape[2:]
        given = images.to(own.dtype)  # the precision in which the method works
        others = [view.inverse(self._answer(view(given)), size) for view in self.views[1:]]
        head: losses.Head = "sigmoid" if own.shape[1] == 1 else self.head
        return losses.mixture(torch.stack([own, *others]), head)

    @torch.no_grad()
    def _answer(self, images: Images) -> Logits:
        """The answer of the present state to one view."""
        if isinstance(self.adapter, FrozenPredictor):
            return self.adapter.predict_frozen(images)
        return self.adapter(images) if self.again else self._replay(self.network, images)

    def _capture_state(self) -> Hashable:
        """None forbids a CUDA graph: a BatchNorm mode with values of its own may change between two calls."""
        modes = (layer.__dict__.get("mode") for layer in self._norms)
        return self._guard() if all(isinstance(mode, STATELESS) for mode in modes) else None


def _ignored(own: Logits) -> None:
    """Do nothing with the method's own answer."""
