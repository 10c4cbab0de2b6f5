"""The tests of the gate with the models that they need: a shadow of the source, the judge and the fingerprint."""

import copy
from collections.abc import Mapping

import torch
from jaxtyping import Bool
from torch import Tensor

from ttdg.adaptation.adapter import Images, Logits
from ttdg.adaptation.build import Trained
from ttdg.adaptation.judge.regressor import Prediction
from ttdg.adaptation.universe.gate_pairs import pair_signals
from ttdg.adaptation.universe.site_judge import ADAPTED, GATE, UNADAPTED, SiteJudge
from ttdg.adaptation.universe.source_reading import SourceReader
from ttdg.adaptation.universe.treatment import TREATMENTS
from ttdg.safety import Fingerprint, SourceShadow
from ttdg.safety.gate import answer_overlap, failed_tests, mean_answer
from ttdg.safety.policy import GatePolicy
from ttdg.types import Part, Regions


class GateTests:
    """The tests of the gate with the models that they need. Nothing in them adapts.

    Where the structures of the source vary in size, an answer that agrees with the source's is given as the mean of
    both, as `universe` does (`ttdg.adaptation.universe.answer_rule`). Such a mean harms fewer images.

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
            self.judge = SiteJudge(parts["judge"], GATE, next(network.parameters()).device)
        learning = parts["judge"].settings.get("learning", {}) if self.judge else {}
        treatment = TREATMENTS.get(learning["anatomy"]) if "anatomy" in learning else None
        self.averages = treatment is not None and treatment.rule == "agreement"

    def __call__(self, images: Images, answer: Logits) -> tuple[Logits, list[str], Prediction | None]:
        """Return the source's logits, for each image why the answer fails, and the expected Dice of the candidates."""
        source, description = self.shadow(images)
        foreign = None
        if self.fingerprint is not None:
            foreign = self.fingerprint.is_foreign(description)
        expected = members = None
        if self.judge is not None:
            expected = self.judge.predict(pair_signals(self.reader, images, source, answer)[1])
            members = expected.members[..., UNADAPTED], expected.members[..., ADAPTED]
        return source, failed_tests(source, answer, self.regions, self.policy, members, foreign), expected

    def averaged(self, source: Logits, answer: Logits) -> tuple[Logits, Bool[Tensor, " b"]]:
        """Return the answer, or its mean with the source's where both agree, and where that is the case."""
        if not self.averages:
            return answer, torch.zeros(len(answer), dtype=torch.bool, device=answer.device)
        agreeing = answer_overlap(source, answer, self.regions) > self.policy.averaged
        return torch.where(agreeing[:, None, None, None], mean_answer(source, answer), answer), agreeing


def can_expect_gains(parts: Mapping[str, Part]) -> bool:
    """Return whether the gate can expect the gain of an answer: the judge must have a regressor for it."""
    return "prior" in parts and "judge" in parts and GATE in parts["judge"].settings.get("site_signals", {})
