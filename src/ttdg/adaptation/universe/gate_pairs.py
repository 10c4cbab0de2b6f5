"""Pairs of answers from which the judge of the gate is fitted: that of the source, and that of a method.

The gate compares any method with the source network as it is. The judge of a learned site has met neither: its
candidates are the answer of the judge of readings, and that of the learned network, averaged over sizes and mirror
images. The judge of the gate is fitted to three other pairs at the same simulated hospitals. In each, the first answer
is the source's, in eval mode. The second is that of the learned network on one view, of the source with the statistics
of the batch, as `norm` answers, or of the source with mixed statistics, as `alpha-bn` answers.
"""

import copy
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.adapter import Fixed, Images, Logits
from ttdg.adaptation.statistics_base import BASES
from ttdg.adaptation.universe.learner import UniverseLearner
from ttdg.adaptation.universe.site_judge import site_signals, stack_candidates
from ttdg.adaptation.universe.source_reading import SourceReader
from ttdg.networks import batchnorm

Pair = tuple[Float[Tensor, "3 b l h w"], dict[str, Float[Tensor, "3 b"]]]


@torch.no_grad()
def pair_signals(reader: SourceReader, images: Images, source: Logits, answer: Logits) -> Pair:
    """Probabilities and label-free signals of the candidates: source, answer, and their mean."""
    P = stack_candidates(source.softmax(1), answer.nan_to_num().softmax(1))
    judge = reader.judge
    return P, site_signals(reader.prior, judge.locations, judge.regions, images, reader.features(images), P)


def answer_pairs(network: nn.Module, learner: UniverseLearner) -> list[Callable[[Images], Pair]]:
    """Functions that answer images twice, one for each pair. `network` is copied and stays as it is.

    Args:
        network: the source network; without BatchNorm there is one pair.
        learner: the learner, whose network has learned the site of the images when a function is called.
    """
    modes = BASES if batchnorm.has_layers(network) else {"eval": batchnorm.EVAL}
    fixed = {name: Fixed(copy.deepcopy(network), mode) for name, mode in modes.items()}
    source = fixed.pop("eval")

    def pair(other: Callable[[Images], Logits], images: Images) -> Pair:
        return pair_signals(learner.reader, images, source(images), other(images))

    others: list[Callable[[Images], Logits]] = [learner.learned_network(), *fixed.values()]
    return [partial(pair, other) for other in others]
