"""The adapter of method "universe": when a site is learned, and which answer each of its images gets."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Assessment, Images, Logits, Progress, Remarking, SelfAssessing
from ttdg.adaptation.judge.method import EvidenceKind
from ttdg.adaptation.universe.answer_rule import AnswerRule, choose_candidates
from ttdg.adaptation.universe.carrier_controls import CarrierName, make_carrier
from ttdg.adaptation.universe.guided_learner import GuidedLearner
from ttdg.adaptation.universe.site_judge import (
    ADAPTED,
    CANDIDATES,
    UNADAPTED,
    SiteJudge,
    site_signals,
    stack_candidates,
)
from ttdg.adaptation.universe.site_verdict import SiteVerdict
from ttdg.adaptation.universe.source_reading import Features, SourceReader, SourceReading
from ttdg.adaptation.universe.stored_labels import StoredLabels
from ttdg.adaptation.views import VIEW_SETS
from ttdg.types import Part

JUDGED = 4  # images that share BatchNorm statistics in the judge's readings
SAMPLED = 32  # batches of a site from which its expected gain is measured, at most


class UniverseLearner(GuidedLearner, SelfAssessing, Remarking):
    """Learns a site, unless it is like home or shows thin structures, and answers by a rule.

    `verdict` decides whether the site is learned, and whether learning it is expected to lose. `rule` chooses the
    candidate of each image (`ttdg.adaptation.universe.answer_rule`). Without a `site_judge` nothing is expected of the
    answers, and every answer is the adapted network's.
    """

    def __init__(
        self, network: nn.Module, prior: Part, judge: Part, *, evidence: EvidenceKind, random_universe: bool,
        warm_up: int, learnable: bool = True, site_judge: bool = True, rule: AnswerRule = "adapted",
        carrier: CarrierName = "universe", scales: bool = True, **learning: Any,
    ) -> None:  # fmt: skip
        reader = SourceReader(copy.deepcopy(network), prior, judge, evidence, random_universe)
        self.prior, self.rule, self.warm_up = reader.prior, rule, warm_up
        self.answer_views = VIEW_SETS["scales" if scales else "flips"]
        device = next(network.parameters()).device
        self.site_judge = SiteJudge(judge, evidence, device) if site_judge else None
        members, error = 1, 0.0
        if self.site_judge:
            members, error = len(self.site_judge.regressor.weights), self.site_judge.gain_error
        self.verdict = SiteVerdict(judge, members, device, learnable, error)
        self._last: Assessment | None = None
        super().__init__(network, reader, make_carrier(carrier, self.prior, learning["seed"]), **learning)

    def __call__(self, images: Images) -> Logits:
        """Store the batch, learn unless the verdict forbids it, and answer."""
        reading = self.reader.read(images)
        self._store(images, reading)
        if len(self.memory) and self.verdict.is_learned:
            for _ in range(self.steps):
                self._learn()
        return self._respond(images, reading, counting=True)

    def learn(self, site: Iterable[Images], progress: Progress = lambda done, total: None) -> None:
        """Learn a whole site, unless the verdict forbids it, and measure the gain that is expected of it."""
        self.verdict.described.zero_()
        if not self.verdict.learnable:  # nothing is stored, since nothing is learned
            for images in site:
                self.verdict.add_images(self.memory.to_unit(images.float())[0])
            return
        super().learn(site, progress)

    def learn_always(self, site: Iterable[Float[Tensor, "_b c h w"]]) -> None:
        """Learn a whole site whatever the verdict, and do not judge it; for the fit of the site's judge."""
        self._store_site(site)
        super()._take_folder_steps()
        self._features = []

    @torch.no_grad()
    def _store(self, images: Images, reading: SourceReading) -> None:
        self.verdict.add_images(self.memory.to_unit(images.float())[0])
        super()._store(images, reading)

    def _take_folder_steps(self, progress: Progress = lambda done, total: None) -> None:
        if self.verdict.is_learned:
            super()._take_folder_steps(progress)
            self._measure_gain()

    @torch.no_grad()
    def _measure_gain(self) -> None:
        """Sum the gains that the site's judge expects of stored images. Nothing is read again by the first judge."""
        if self.site_judge is None or not self._is_warm:
            return
        self.verdict.gains.zero_()
        batches = torch.arange(len(self.memory)).split(JUDGED)
        for rows in batches[:: -(-len(batches) // SAMPLED)]:
            images = self._stored_images(rows)
            judged = StoredLabels(self.memory).labels("judged", rows, images.shape[2:]).log()
            _, members, *_ = self._answer(self._opinions, images, judged, self._source_features(rows))
            self.verdict.add_gains(members)

    def predict_frozen(self, images: Images) -> Logits:
        """Return the log-probabilities of the chosen candidate of each image; the judge's while little is learned."""
        return self._respond(images, self._kept.take(images) or self.reader.read(images))

    @torch.no_grad()
    def _respond(self, images: Images, reading: SourceReading, counting: bool = False) -> Logits:
        """Choose between the candidates of each image; `counting` adds the expected gains to those of the site."""
        if not self._is_warm:
            self._last = reading.assessment
            return reading.logits
        P, members, dice, half_width = self._answer(
            self._opinions, images, reading.logits, reading.features.float()
        )
        chosen, self._last = torch.full((len(images),), ADAPTED, device=images.device), None
        if self.site_judge is not None:
            if counting:
                self.verdict.add_gains(members)
            chosen = choose_candidates(self.rule, self.verdict.gaining, P, members, self.reader.judge.regions)
            names = tuple(CANDIDATES[i] for i in chosen.tolist())
            readings = reading.assessment
            # The mean of both judges ranks answers better (docs/measurements/learning.md, "The expected Dice …").
            dice, half_width = (
                (site + other.to(site)[:, None]) / 2
                for site, other in ((dice, readings.dice), (half_width, readings.half_width))
            )
            expected, half = (x.gather(1, chosen[:, None])[:, 0] for x in (dice, half_width))
            self._last = Assessment(names, expected, half, dice[:, UNADAPTED])
        return P[chosen, torch.arange(len(images), device=images.device)].clamp(min=1e-7).log()

    @property
    def _is_warm(self) -> bool:
        """False until enough steps were taken for an adapted answer: those with which the site's judge was fitted."""
        return bool(self.steps_taken[0] >= (1 if self.site_judge is None else max(1, self.warm_up)))

    def _opinions(self, images: Images, unadapted: Logits, features: Features) -> tuple[Tensor, ...]:
        """Probabilities of the candidates, and the fields of their predicted Dice."""
        P = stack_candidates(unadapted.softmax(1), self._adapted(images))
        if self.site_judge is None:
            nothing = P.new_zeros(1, P.shape[1], len(P))
            return P, nothing, nothing[0], nothing[0]
        predicted = self.site_judge.predict(self._signals(images, features, P))
        return P, predicted.members, predicted.dice, predicted.half_width

    def evidence(self, images: Images) -> tuple[Float[Tensor, "3 b l h w"], dict[str, Float[Tensor, "3 b"]]]:
        """Probabilities and signals of the candidates, from which the site's judge is fitted."""
        reading = self._kept.take(images) or self.reader.read(images)
        P = stack_candidates(reading.logits.softmax(1), self._adapted(images))
        return P, self._signals(images, reading.features.float(), P)

    def _signals(self, images: Images, features: Features, P: Tensor) -> dict[str, Tensor]:
        judge = self.reader.judge
        return site_signals(self.prior, judge.locations, judge.regions, images, features, P)

    def _adapted(self, images: Images) -> Float[Tensor, "b l h w"]:
        """The teacher's probabilities, averaged over mirror images and sizes."""
        answers = [
            view.inverse(self._logits(self.teacher, view(images)), images.shape[2:])
            for view in self.answer_views
        ]
        return torch.stack([losses.probabilities(logits, self.head) for logits in answers]).mean(0)

    def assessment(self) -> Assessment | None:
        """Chosen candidates of the last batch with their expected Dice; None before the first batch."""
        return self._last

    def remarks(self) -> tuple[str, ...]:
        """Why the site was not learned, or that learning is expected to lose."""
        return self.verdict.remarks(learned=bool(self.steps_taken[0]))

    @torch.no_grad()
    def reset(self) -> None:
        """Return to the source, and forget all images and everything measured on them."""
        super().reset()
        self.verdict.reset()
        self._last = None

    def _tensors(self) -> dict[str, Tensor]:
        return super()._tensors() | {f"universe.{name}": x for name, x in self.verdict.tensors().items()}
