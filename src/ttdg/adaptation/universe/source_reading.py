"""What the source network says of a batch: the judge's answer, and features for the matching. Nothing in it adapts."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float16
from torch import Tensor, nn

from ttdg.adaptation.adapter import Assessment, Images, Logits
from ttdg.adaptation.judge.method import EvidenceKind, JudgeAdapter
from ttdg.networks import feature_maps
from ttdg.prior import MorphologyPrior
from ttdg.types import Part

Features = Float[Tensor, "b v y x"]  # unit vectors on the node grid


class SourceReading(NamedTuple):
    """The source network's view of a batch."""

    logits: Logits  # the judge's answer
    assessment: Assessment  # its expected Dice
    features: Float16[Tensor, "b v y x"]  # half as many bytes while they are kept


class SourceReader:
    """The judge and the morphology prior around the source network."""

    def __init__(
        self, network: nn.Module, prior: Part, judge: Part, evidence: EvidenceKind, random_universe: bool
    ) -> None:
        device = next(network.parameters()).device
        self.judge = JudgeAdapter(network, prior, judge, evidence, margin=0.05)
        self.prior = MorphologyPrior.from_part(prior).requires_grad_(False).to(device)
        if random_universe:
            self.prior = self.prior.with_random_universe()

    @torch.no_grad()
    def read(self, images: Images) -> SourceReading:
        """Judge a batch; its features are those of the judge's first reading, the source network."""
        (logits, features), assessment = self.judge.read(images), self.judge.assessment()
        assert assessment is not None
        return SourceReading(logits, assessment, features.half())

    @torch.no_grad()
    def features(self, images: Images) -> Features:
        """Features of the source network, projected by the prior."""
        maps = feature_maps(self.judge.network, images, self.prior.spec.levels)[1]
        return self.prior.project(maps, images.shape[2:])
