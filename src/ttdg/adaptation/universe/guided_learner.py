"""Self-training with corrected labels.

The judge's labels come first, sure images carry labels to unsure ones, and labels are anchored where the teacher and
the judge agree.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Images, Progress
from ttdg.adaptation.site_learning.learner import SelfTraining
from ttdg.adaptation.site_learning.soft_labels import mirror_mean, place_weights, sharpen
from ttdg.adaptation.universe.answer_rule import AGREEING
from ttdg.adaptation.universe.belief import belief
from ttdg.adaptation.universe.carriers import Carrier, CellBatch, CellLabels
from ttdg.adaptation.universe.image_weights import ImageWeights, mirror_consistency, structure_confidence
from ttdg.adaptation.universe.kept_readings import KeptReadings
from ttdg.adaptation.universe.source_reading import Features, SourceReader, SourceReading
from ttdg.adaptation.universe.stored_labels import StoredLabels, as_bytes, notes
from ttdg.networks.losses import soft_dice

Places = Literal["equal", "universe", "confidence"]  # how pixels are weighted

CHUNK = 16  # images of a pass over the memory
REFRESHES = 3  # of the carried labels while a folder is learned


class GuidedLearner(SelfTraining):
    """Learns from the judge's labels first, then from the teacher's, with labels carried along the matching.

    `reader` predicts with the source network, whose weights never change. For each stored image the memory keeps the
    judge's labels and expected Dice, and the labels that the `carrier` brings from sure images.
    """

    def __init__(
        self, network: nn.Module, reader: SourceReader, carrier: Carrier, *, first: float, carried: float,
        anchored: float, weigh: ImageWeights, agreeing: bool, places: Places, **learning: Any,
    ) -> None:  # fmt: skip
        self.reader, self.carrier = reader, carrier
        self.first, self.carried, self.anchored, self.agreeing = first, carried, anchored, agreeing
        self.weigh, self.places = weigh, places
        self.steps_taken = torch.zeros(2, dtype=torch.long)  # all, and those at the last refresh
        self._features: list[Tensor] = []  # of the stored images of a folder, while it is learned
        self._kept = KeptReadings()  # of the batches of a folder, until they are answered
        super().__init__(network, **learning)

    def carry_labels(self, site: Iterable[Float[Tensor, "_b c h w"]]) -> StoredLabels:
        """Store a whole site and carry the judge's labels of its sure images to all images, without learning."""
        self._store_site(site)
        if len(self.memory):
            self._refresh()
        return StoredLabels(self.memory)

    def learn(self, site: Iterable[Images], progress: Progress = lambda done, total: None) -> None:
        """Learn a whole site from labels of the judge and of the teacher."""
        super().learn(site, progress)
        self._features = []

    def _store_site(self, site: Iterable[Float[Tensor, "_b c h w"]]) -> None:
        self._features = []
        self._kept.clear()
        super()._store_site(site)

    def _remember(self, images: Images) -> None:
        reading = self.reader.read(images)
        self._store(images, reading)
        if self.memory.capacity is None and self._kept.add(images, reading):
            self._features += reading.features.unbind()

    @torch.no_grad()
    def _store(self, images: Images, reading: SourceReading) -> None:
        judged, carried = reading.logits.softmax(1), self.carrier.carry(reading.features.float())
        believed = self._belief(carried, F.interpolate(judged, size=carried.shape[2:], mode="area"))
        dice = reading.assessment.dice
        value = self._value(images, judged, dice)
        self.memory.add(images, **notes(judged, dice, carried, believed, value))

    def _value(
        self, images: Images, judged: Float[Tensor, "b l h w"], expected: Float[Tensor, " b"]
    ) -> Float[Tensor, " b"]:
        """How much each image counts, in [0, 1]."""
        if self.weigh == "uniform":
            return torch.ones_like(expected)
        if self.weigh == "confidence":
            return structure_confidence(judged)
        if self.weigh == "consistency":
            logits = self._logits(self.teacher, torch.cat([images, images.flip(3)]))
            upright, mirrored = losses.probabilities(logits, self.head).chunk(2)
            return mirror_consistency(upright, mirrored.flip(3))
        return expected

    def _learn(self) -> None:
        used = self.carried or self.places == "universe"
        since = int(self.steps_taken[0] - self.steps_taken[1])
        if used and (not self.steps_taken[0] or since >= max(1, self.folder_steps // REFRESHES)):
            self._refresh()
        super()._learn()
        self.steps_taken[0] += 1

    @torch.no_grad()
    def _refresh(self) -> None:
        """Carry the labels of the sure images of the site to all stored images."""
        certainty, parts = StoredLabels(self.memory).certainty(), torch.arange(len(self.memory)).split(CHUNK)
        cells = [self._cell_labels(rows) for rows in parts]

        def site() -> Iterator[CellBatch]:
            for rows, labels in zip(parts, cells, strict=True):
                yield CellBatch(self._source_features(rows), labels, certainty[rows.to(certainty.device)])

        self.carrier.refresh(site)
        for rows, labels in zip(parts, cells, strict=True):
            carried = self.carrier.carry(self._source_features(rows))
            here = rows.to(carried.device)
            self.memory.columns["carried"][here] = as_bytes(carried)
            self.memory.columns["belief"][here] = self._belief(carried, labels)
        self.steps_taken[1] = self.steps_taken[0]

    def _source_features(self, rows: Int[Tensor, " n"]) -> Features:
        """Features of stored images in the source network: those kept, or computed again."""
        if len(self._features) == len(self.memory):
            return torch.stack([self._features[row] for row in rows.tolist()]).float()
        return self.reader.features(self._stored_images(rows))

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
    def _guide(self, rows: Int[Tensor, " n"]) -> tuple[Tensor, ...]:
        """The judge's labels during the first steps; labels carried to unsure images; weights of the images.

        If labels are anchored, the judge's labels follow. If pixels are weighted by the universe, its reading follows:
        the carried labels, as far as they are believed.
        """
        stored, size = StoredLabels(self.memory), self.memory.pixels.shape[2:]
        carried = stored.labels("carried", rows, size)
        labels = sharpen(carried, self.sharpness, self.head)
        on_device = rows.to(labels.device)
        belief = self.memory.note("belief", rows)[:, None, None, None]
        share = self.carried * (1 - stored.ranks()[on_device])[:, None, None, None] * belief
        starting = bool(self.steps_taken[0] < self.first * self.folder_steps)
        judged = self._sharpen(stored.labels("judged", rows, size)) if starting or self.anchored else labels
        if starting:
            labels, share = judged.lerp(labels, share), torch.ones_like(share)
        weights = stored.weights()[on_device][:, None, None, None].expand(-1, 1, *size).contiguous()
        reading = torch.ones_like(carried).lerp(carried, belief)  # ones agree with all labels alike
        anchor = [judged] if self.anchored else []
        return labels, share, weights, *anchor, *([reading] if self.places == "universe" else [])

    def _guided(
        self, labels: Float[Tensor, "b l h w"], grid: Float[Tensor, "b h w 2"], *guide: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Labels and weights in the student's view; pixels count as the option `places` says."""
        others, share, weights, *more = guide
        if self.anchored:
            labels = self._anchor(labels, more[0])
        if self.places != "equal":
            weights = weights * place_weights(labels, more[-1] if self.places == "universe" else labels)
        return super()._guided(labels, grid, others, share, weights)

    def _anchor(self, labels: Float[Tensor, "b l h w"], judged: Float[Tensor, "b l h w"]) -> Tensor:
        """Blend the teacher's labels with the judge's in images in which both show the same structures."""
        found, expected = ((x[:, 1:] >= 0.5).float() for x in (labels, judged))
        agree = soft_dice(found, expected).mean(1) > AGREEING
        return labels.lerp(judged, self.anchored * agree[:, None, None, None])

    def _mirrored(self, images: Images) -> Float[Tensor, "b l h w"]:
        """The teacher's probabilities, averaged over the image and its mirror image."""
        return mirror_mean(self._logits(self.teacher, torch.cat([images, images.flip(3)])), self.head)

    def _stored_images(self, rows: Int[Tensor, " n"]) -> Images:
        return self.memory.network_input(self.memory.unit_images(rows), rows)

    @torch.no_grad()
    def reset(self) -> None:
        """Return to the source, and forget all images and what they carried."""
        super().reset()
        self.reader.judge.reset()
        self.carrier.reset()
        self.steps_taken.zero_()
        self._features = []
        self._kept.clear()

    def _tensors(self) -> dict[str, Tensor]:
        own = {**self.carrier.tensors(), "steps": self.steps_taken}
        return super()._tensors() | {f"universe.{name}": value for name, value in own.items()}
