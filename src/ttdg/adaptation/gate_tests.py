"""The tests of the gate with the models that they need: a shadow of the source, the judge and the fingerprint."""

import copy
from collections.abc import Mapping

import torch

from ttdg.adaptation.adapter import Images, Logits
from ttdg.adaptation.build import Trained
from ttdg.adaptation.judge.regressor import Prediction
from ttdg.adaptation.universe.site_judge import ADAPTED, UNADAPTED, SiteJudge, site_signals, stack_candidates
from ttdg.adaptation.universe.source_reading import SourceReader
from ttdg.safety import Fingerprint, SourceShadow
from ttdg.safety.gate import failed_tests
from ttdg.safety.policy import GatePolicy
from ttdg.types import Part, Regions


class GateTests:
    """The tests of the gate with the models that they need. Nothing in them adapts.

    Args:
        model: The source model with its parts.
        regions: Scored regions.
        policy: Bounds of the tests.
    """

    def __init__(self, model: Trained, regions: Regions, policy: GatePolicy) -> None:
        self.regions, self.policy, parts = regions, policy, model.parts
        known = parts.get("fingerprint")
        self.fingerprint = Fingerprint.from_part(known) if known is not None else None
        self.shadow = SourceShadow(model.network, self.fingerprint.layers if self.fingerprint else ())
        self.judge: SiteJudge | None = None
        if can_expect_gains(parts):
            network = copy.deepcopy(model.network)
            self.reader = SourceReader(network, parts["prior"], parts["judge"], "all", False)
            self.judge = SiteJudge(parts["judge"], "all", next(network.parameters()).device)

    def __call__(self, images: Images, answer: Logits) -> tuple[Logits, list[str], Prediction | None]:
        """Return the source's logits, for each image why the answer fails, and the expected Dice of the candidates."""
        source, description = self.shadow(images)
        foreign = None
        if self.fingerprint is not None:
            foreign = self.fingerprint.is_foreign(description)
        expected = self._expected(images, source, answer) if self.judge is not None else None
        members = None
        if expected is not None:
            members = expected.members[..., UNADAPTED], expected.members[..., ADAPTED]
        return source, failed_tests(source, answer, self.regions, self.policy, members, foreign), expected

    @torch.no_grad()
    def _expected(self, images: Images, source: Logits, answer: Logits) -> Prediction:
        assert self.judge is not None
        P = stack_candidates(source.softmax(1), answer.nan_to_num().softmax(1))
        judge = self.reader.judge
        signals = site_signals(
            self.reader.prior, judge.locations, judge.regions, images, self.reader.features(images), P
        )
        return self.judge.predict(signals)


def can_expect_gains(parts: Mapping[str, Part]) -> bool:
    """Return whether the parts of a model let the gate expect the gain of an answer."""
    return "prior" in parts and "judge" in parts and "site_signals" in parts["judge"].settings
