"""A whole site at once: an adapter learns all of its images, and then answers them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.adaptation.abilities import (
    Adapter,
    FrozenPredictor,
    Images,
    Logits,
    Progress,
    SelfAssessing,
    SiteLearner,
)
from ttdg.adaptation.answer_views import AveragedAnswers
from ttdg.adaptation.own_network.first_pass import check_tensor
from ttdg.arguments import whole_number
from ttdg.errors import UserError


@dataclass(frozen=True)
class SiteAnswers:
    """The answers to all images of a site, in their order."""

    logits: Logits
    dice: Float[Tensor, " b"] | None  # expected Dice of each answer; None if the method expects none
    half_width: Float[Tensor, " b"] | None  # half the width of the 80 % interval of `dice`


def predict_site(
    adapter: Adapter, images: Images, batch: int = 4, progress: Progress = lambda done, total: None
) -> SiteAnswers:
    """Reset the adapter, let it learn the images of a new site, and answer them.

    A method that learns a site, such as `universe`, learns all images first and answers each of them with the final
    state. Any other method adapts to one batch after the other and answers it.

    Args:
        adapter: The result of `adapt`.
        images: All images of the site, normalised as the network expects them.
        batch: Images that are answered together.
        progress: Called with the number of finished steps of learning and of all steps.
    """
    check_tensor(images, "images")
    if not hasattr(adapter, "reset"):
        raise UserError(
            f"give an adapter, the result of `ttdg.adapt`, not a value of type {type(adapter).__name__}"
        )
    batch = whole_number("batch", batch)
    predict: Callable[[Images], Logits] = adapter
    adapter.reset()
    if isinstance(adapter, SiteLearner):
        adapter.learn(images.split(batch), progress)
        predict = frozen_predictor(adapter)
    logits, expected = [], []
    for part in images.split(batch):
        logits.append(predict(part))
        if isinstance(adapter, SelfAssessing) and (assessment := adapter.assessment()) is not None:
            expected.append((assessment.dice, assessment.half_width))
    dice, width = (torch.cat(values) for values in zip(*expected, strict=True)) if expected else (None, None)
    return SiteAnswers(torch.cat(logits), dice, width)


def learn_site(
    adapter: Adapter, site: Iterable[Images], progress: Progress = lambda done, total: None
) -> None:
    """Reset the adapter and let it learn all batches of a site, as the folder stream does.

    A `SiteLearner` decides itself how often it sees each image, and reports its steps to `progress`. Any other adapter
    sees each batch once.
    """
    if isinstance(adapter, SiteLearner):
        adapter.reset()
        adapter.learn(site, progress)
    else:
        adapt_once(adapter, site)


def adapt_once(adapter: Adapter, site: Iterable[Images]) -> None:
    """Reset the adapter and let it adapt to each batch once; answers are discarded, so no other view is asked."""
    adapter.reset()
    method = adapter.adapter if isinstance(adapter, AveragedAnswers) else adapter
    for images in site:
        method(images)


def frozen_predictor(adapter: Adapter) -> Callable[[Images], Logits]:
    """Return a function that answers without an update: the adapter's own, or the adapted network."""
    predict = adapter.predict_frozen if isinstance(adapter, FrozenPredictor) else adapter.network

    def answer(images: Images) -> Logits:
        with torch.no_grad():
            logits: Logits = predict(images)
        return logits

    return answer
