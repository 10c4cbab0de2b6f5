"""The adapter of method "universe": self-training with labels that the judge and the universe correct."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Assessment, Images, Logits, Progress, Remarking, SelfAssessing
from ttdg.adaptation.judge.method import EvidenceKind, choose
from ttdg.adaptation.site_learning.image_memory import ImageMemory
from ttdg.adaptation.site_learning.self_training import SelfTraining
from ttdg.adaptation.site_learning.soft_labels import Guide, mirror_mean, sharpen
from ttdg.adaptation.universe.belief import belief
from ttdg.adaptation.universe.carrier_controls import CarrierName, make_carrier
from ttdg.adaptation.universe.carriers import CellBatch, CellLabels
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
from ttdg.adaptation.universe.stored_labels import StoredLabels, as_bytes, notes
from ttdg.adaptation.views import VIEW_SETS
from ttdg.types import Part

CHUNK = 16  # images of a pass over the memory
JUDGED = 4  # images that share BatchNorm statistics in the judge's readings
REFRESHES = 3  # of the carried labels while a folder is learned


class UniverseLearner(SelfTraining, SelfAssessing, Remarking):
    """Learns a site from the judge's labels first, then from the teacher's, with labels carried along the matching.

    `reader` predicts with the source network, whose weights never change. For each stored image the memory keeps the
    judge's labels and expected Dice, and the labels that the `carrier` brings from sure images. `verdict` decides
    whether the site is learned. Without a `site_judge` every answer is the adapted network's.
    """

    def __init__(
        self, network: nn.Module, prior: Part, judge: Part, *, evidence: EvidenceKind, random_universe: bool,
        first: float, carried: float, weigh: bool, margin: float, warm_up: int, site_judge: bool = True,
        carrier: CarrierName = "universe", agreeing: bool = False, scales: bool = True, **learning: Any,
    ) -> None:  # fmt: skip
        self.reader = SourceReader(copy.deepcopy(network), prior, judge, evidence, random_universe)
        self.prior = self.reader.prior
        self.first, self.carried, self.weigh, self.agreeing = first, carried, weigh, agreeing
        self.margin, self.warm_up = margin, warm_up
        self.answer_views = VIEW_SETS["scales" if scales else "flips"]
        device = next(network.parameters()).device
        self.site_judge = SiteJudge(judge, evidence, device) if site_judge else None
        members = len(self.site_judge.regressor.weights) if self.site_judge else 1
        self.carrier = make_carrier(carrier, self.prior, learning["seed"])
        self.verdict = SiteVerdict(judge, members, device)
        self.steps_taken = torch.zeros(2, dtype=torch.long)  # all, and those at the last refresh
        self._last: Assessment | None = None
        super().__init__(network, **learning)

    def __call__(self, images: Images) -> Logits:
        """Store the batch, learn unless the site is like home, and answer."""
        reading = self.reader.read(images)
        self._store(images, reading)
        if len(self.memory) and not self.verdict.like_home:
            for _ in range(self.steps):
                self._learn()
        return self._respond(images, reading, counting=True)

    def learn(self, site: Iterable[Images], progress: Progress = lambda done, total: None) -> None:
        """Learn a whole site, unless it is like home, and measure the expected gain, which decides the fallback."""
        self.verdict.described.zero_()
        super().learn(site, progress)
        if self.site_judge is not None and int(self.steps_taken[0]):
            self.verdict.gains.zero_()
            for rows in torch.arange(len(self.memory)).split(JUDGED):
                images = self._stored_images(rows)
                self._respond(images, self.reader.read(images), counting=True)

    def learn_always(self, site: Iterable[Float[Tensor, "_b c h w"]]) -> None:
        """Learn a whole site even if it is like home, and do not judge it; for the fit of the site's judge."""
        self._store_site(site)
        super()._take_folder_steps()

    def carry_labels(self, site: Iterable[Float[Tensor, "_b c h w"]]) -> StoredLabels:
        """Store a whole site and carry the judge's labels of its sure images to all images, without learning."""
        self._store_site(site)
        if len(self.memory):
            self._refresh()
        return StoredLabels(self.memory)

    def _store_site(self, site: Iterable[Float[Tensor, "_b c h w"]]) -> None:
        self.memory = ImageMemory(None, self.seed)
        for images in site:
            self._remember(images)

    def _take_folder_steps(self, progress: Progress = lambda done, total: None) -> None:
        if not self.verdict.like_home:
            super()._take_folder_steps(progress)

    def _remember(self, images: Images) -> None:
        self._store(images, self.reader.read(images))

    @torch.no_grad()
    def _store(self, images: Images, reading: SourceReading) -> None:
        self.verdict.add_images(self.memory.to_unit(images.float())[0])
        judged, carried = reading.logits.softmax(1), self.carrier.carry(reading.features)
        believed = self._belief(carried, F.interpolate(judged, size=carried.shape[2:], mode="area"))
        self.memory.add(images, **notes(judged, reading.assessment.dice, carried, believed))

    def _learn(self) -> None:
        since = int(self.steps_taken[0] - self.steps_taken[1])
        if self.carried and (not self.steps_taken[0] or since >= max(1, self.folder_steps // REFRESHES)):
            self._refresh()
        super()._learn()
        self.steps_taken[0] += 1

    @torch.no_grad()
    def _refresh(self) -> None:
        """Carry the labels of the sure images of the site to all stored images."""
        certainty, parts = StoredLabels(self.memory).certainty(), torch.arange(len(self.memory)).split(CHUNK)
        cells = [self._cell_labels(rows) for rows in parts]

        def site() -> Iterator[
            CellBatch
        ]:  # features are computed again, because those of an image take a megabyte
            for rows, labels in zip(parts, cells, strict=True):
                features = self.reader.features(self._stored_images(rows))
                yield CellBatch(features, labels, certainty[rows.to(certainty.device)])

        self.carrier.refresh(site)
        for rows, labels in zip(parts, cells, strict=True):
            carried = self.carrier.carry(self.reader.features(self._stored_images(rows)))
            here = rows.to(carried.device)
            self.memory.columns["carried"][here] = as_bytes(carried)
            self.memory.columns["belief"][here] = self._belief(carried, labels)
        self.steps_taken[1] = self.steps_taken[0]

    def _cell_labels(self, rows: Int[Tensor, " n"]) -> Float[Tensor, "n l y x"]:
        """Labels of stored images on the node grid: the judge's before the first step, later the teacher's."""
        size = self.memory.columns["carried"].shape[2:]
        if not self.steps_taken[0]:
            return StoredLabels(self.memory).labels("judged", rows, size)
        labels = self._mirrored(self._stored_images(rows))
        return F.interpolate(labels, size=size, mode="area")

    def _belief(self, carried: CellLabels, labels: CellLabels) -> Float[Tensor, " n"]:
        """Weight of the carried labels of each image, in [0, 1]."""
        if not self.agreeing:
            return torch.ones(len(carried), device=carried.device)
        return belief(carried, labels, self.reader.judge.regions)

    @torch.no_grad()
    def _guide(self, rows: Int[Tensor, " n"]) -> Guide:
        """The judge's labels during the first steps; labels carried to unsure images; weights of the images."""
        stored, size = StoredLabels(self.memory), self.memory.pixels.shape[2:]
        labels = sharpen(stored.labels("carried", rows, size), self.sharpness, self.head)
        on_device = rows.to(labels.device)
        share = self.carried * (1 - stored.ranks()[on_device]) * self.memory.note("belief", rows)
        share = share[:, None, None, None]
        if self.steps_taken[0] < self.first * self.folder_steps:
            judged = self._sharpen(stored.labels("judged", rows, size))
            labels, share = judged.lerp(labels, share), torch.ones_like(share)
        weights = stored.weights()[on_device] if self.weigh else labels.new_ones(len(rows))
        return labels, share, weights[:, None, None, None].expand(-1, 1, *size).contiguous()

    def predict_frozen(self, images: Images) -> Logits:
        """Return the log-probabilities of the chosen candidate of each image; the judge's while little is learned."""
        return self._respond(images, self.reader.read(images))

    @torch.no_grad()
    def _respond(self, images: Images, reading: SourceReading, counting: bool = False) -> Logits:
        """Choose between the candidates of each image; `counting` adds the expected gains to those of the site."""
        if self.steps_taken[0] < (1 if self.site_judge is None else max(1, self.warm_up)):
            # The site's judge was fitted to networks that were trained for at least `warm_up` steps.
            self._last = reading.assessment
            return reading.logits
        P, *prediction = self._answer(self._opinions, images, reading.logits, reading.features)
        members, dice, half_width = prediction
        chosen, self._last = torch.full((len(images),), ADAPTED, device=images.device), None
        if self.site_judge is not None:
            if counting:
                self.verdict.add_gains(members)
            chosen = choose(members, ADAPTED if self.verdict.gaining else UNADAPTED, self.margin)
            names = tuple(CANDIDATES[i] for i in chosen.tolist())
            expected, half = (x.gather(1, chosen[:, None])[:, 0] for x in (dice, half_width))
            self._last = Assessment(names, expected, half, dice[:, UNADAPTED])
        return P[chosen, torch.arange(len(images), device=images.device)].clamp(min=1e-7).log()

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
        reading = self.reader.read(images)
        P = stack_candidates(reading.logits.softmax(1), self._adapted(images))
        return P, self._signals(images, reading.features, P)

    def _signals(self, images: Images, features: Features, P: Tensor) -> dict[str, Tensor]:
        judge = self.reader.judge
        return site_signals(self.prior, judge.locations, judge.regions, images, features, P)

    def _mirrored(self, images: Images) -> Float[Tensor, "b l h w"]:
        """The teacher's probabilities, averaged over the image and its mirror image."""
        return mirror_mean(self._logits(self._teacher_pass, torch.cat([images, images.flip(3)])), self.head)

    def _adapted(self, images: Images) -> Float[Tensor, "b l h w"]:
        """The teacher's probabilities, averaged over mirror images and sizes."""
        answers = [
            view.inverse(self._logits(self._teacher_pass, view(images)), images.shape[2:])
            for view in self.answer_views
        ]
        return torch.stack([losses.probabilities(logits, self.head) for logits in answers]).mean(0)

    def _stored_images(self, rows: Int[Tensor, " n"]) -> Images:
        return self.memory.network_input(self.memory.unit_images(rows), rows)

    def assessment(self) -> Assessment | None:
        """Chosen candidates of the last batch with their expected Dice; None before the first batch."""
        return self._last

    def remarks(self) -> tuple[str, ...]:
        """Whether the site was left alone because it looks like home, or because learning is expected to lose."""
        return self.verdict.remarks(learned=bool(self.steps_taken[0]))

    @torch.no_grad()
    def reset(self) -> None:
        """Return to the source, and forget all images and everything measured on them."""
        super().reset()
        self.reader.judge.reset()
        self.carrier.reset()
        self.verdict.reset()
        self.steps_taken.zero_()
        self._last = None

    def _tensors(self) -> dict[str, Tensor]:
        own = {**self.carrier.tensors(), "steps": self.steps_taken, **self.verdict.tensors()}
        return super()._tensors() | {f"universe.{name}": value for name, value in own.items()}
