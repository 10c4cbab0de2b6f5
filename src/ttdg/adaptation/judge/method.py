"""The judge: per image, which of several readings of a batch to believe, without a label.

Candidates come from one pass over stacked readings (BatchNorm statistics mixed more or less, mirrored images), and from
the universe's own reading of the same features. A small
regressor, fitted at source time on simulated shifts of held-out source images, predicts each candidate's Dice from what
can be seen: shape, entropy, agreement, and how the prediction fits the universe. The answer changes only where the
predicted gain, less one standard deviation between the regressor's members, is more than `margin`, the loss that would
count as harm; everywhere else it is the source network's own, averaged with its mirrored reading.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ttdg.adaptation.adapter import Adapter, Assessment, Images, Logits, Method
from ttdg.adaptation.judge.candidates import candidates_of, read_batch, weigh
from ttdg.adaptation.judge.locations import PointLocations
from ttdg.adaptation.judge.mixing import set_mixing
from ttdg.adaptation.judge.readings import SETS
from ttdg.adaptation.judge.regressor import Prediction, Regressor, features
from ttdg.adaptation.judge.signals import signals
from ttdg.checkpoints import part_digest
from ttdg.errors import UserError, suggestion
from ttdg.networks import batchnorm, split
from ttdg.networks.capture import CaptureGuard
from ttdg.networks.cuda_graph import Replay
from ttdg.prior import MorphologyPrior
from ttdg.types import Part

EvidenceKind = Literal["all", "universe", "no-universe", "random-universe", "no-class-mask"]
UNIVERSES: dict[str, Callable[[MorphologyPrior], MorphologyPrior]] = {
    "learned": lambda prior: prior,
    "random": MorphologyPrior.with_random_universe,
    "untyped": MorphologyPrior.without_class_mask,
}


@dataclass(frozen=True)
class Kind:
    """What a judge may see, and choose from."""

    universe: str  # of UNIVERSES
    fused: bool  # are the candidates that listen to the universe among its own?
    sees: Callable[[str], bool]  # a signal of that name


KINDS: dict[EvidenceKind, Kind] = {
    "all": Kind("learned", True, lambda name: True),
    "universe": Kind("learned", True, lambda name: name.startswith("universe")),
    "no-universe": Kind("learned", False, lambda name: not name.startswith("universe")),
    "random-universe": Kind("random", True, lambda name: name.startswith("universe")),
    "no-class-mask": Kind("untyped", True, lambda name: name.startswith("universe")),
}
FALLBACK = "source, both ways"


@dataclass(frozen=True)
class Verdict:
    """What was decided of a batch, for a report."""

    chosen: Int[Tensor, " b"]  # candidate of each image
    prediction: Prediction
    candidates: tuple[str, ...]


class JudgeAdapter:
    """Gradient-free: nothing of the network moves, so `reset` has nothing to undo."""

    def __init__(
        self,
        network: nn.Module,
        prior: MorphologyPrior,
        judge: Part,
        evidence: EvidenceKind,
        margin: float,
        always: str = "",
    ) -> None:
        device = next(network.parameters()).device
        self.network = network.eval().requires_grad_(False)
        self.prior = prior.requires_grad_(False).to(device)
        self.regions = {name: tuple(labels) for name, labels in judge.settings["regions"].items()}
        self.regressor = load_regressor(judge, evidence).to(device)
        self.names = judge.settings["signals"][evidence]
        kind = KINDS[evidence]
        self.readings = SETS[judge.settings.get("readings", "seven")]
        self.options = candidates_of(self.readings, fused=kind.fused)
        self.candidates = tuple(candidate.name for candidate in self.options)
        if len(self.regressor.mean) != len(self.names) + len(self.candidates):
            raise UserError(
                "the judge was fitted by an older version; fit it again with `ttdg fit-judge --again`"
            )
        self.prior = UNIVERSES[kind.universe](self.prior)
        self.places = PointLocations(*judge.tensors[f"places.{kind.universe}"].to(device))
        set_mixing(self.network, judge.tensors["mixing"].tolist())
        if always and always not in self.candidates:
            raise UserError(f"unknown candidate {always!r}{suggestion(always, self.candidates)}")
        self.margin = 1e9 if always else margin
        self.fallback = self.candidates.index(always or FALLBACK)
        self.verdict: Verdict | None = None
        self._replay = Replay(CaptureGuard(network))

    @torch.no_grad()
    def __call__(self, images: Images) -> Logits:
        logits, chosen, *said = self._replay(self._judge, images)
        self.verdict = Verdict(chosen, Prediction(*said), self.candidates)
        return logits

    def _judge(self, images: Images) -> tuple[Tensor, ...]:
        """The chosen candidate's answer, which it is, and what was expected of all. On a GPU one recorded call."""
        evidence = weigh(
            read_batch(self.network, self.prior, images, readings=self.readings), self.prior, self.options
        )
        batchnorm.use(self.network, batchnorm.EVAL)  # its groups were this batch's
        found = signals(evidence, self.regions, self.prior, self.places, only=self.names)
        predicted = self.regressor.predict(features(found, self.names))
        chosen = choose(predicted.members, self.fallback, self.margin)
        logits = evidence.logits[chosen, torch.arange(len(images), device=images.device)]
        return logits, chosen, predicted.dice, predicted.half_width, predicted.members

    def assessment(self) -> Assessment | None:
        """The expected Dice of the last batch's answers, with the candidates they came from."""
        if self.verdict is None:
            return None
        chosen, expected = self.verdict.chosen, self.verdict.prediction
        dice, half_width = (
            x.gather(1, chosen[:, None])[:, 0] for x in (expected.dice, expected.half_width)
        )
        names = tuple(self.candidates[i] for i in chosen.tolist())
        return Assessment(names, dice, half_width)

    def reset(self) -> None:
        self.verdict = None


def choose(
    members: Float[Tensor, "e b k"], fallback: int, margin: float, doubt: float = 1.0
) -> Int[Tensor, " b"]:
    """The candidate with the surest gain over the fallback, where that gain, less `doubt` standard deviations between
    the members, is more than `margin`; a NaN promises nothing."""
    gain = (members - members[..., fallback, None]).nan_to_num(-1.0)
    doubted = doubt * gain.std(0) if len(gain) > 1 else 0.0
    sure, which = (gain.mean(0) - doubted).max(1)
    return torch.where(sure > margin, which, fallback)


def judge(
    network: nn.Module,
    prior: Part,
    part: Part,
    *,
    margin: float = 0.05,
    evidence: EvidenceKind = "all",
    always: str = "",
) -> Adapter:
    """`always` names a candidate to take whatever is expected of it: a control."""
    batchnorm.use(split.require_split(network), batchnorm.EVAL)
    if part.settings.get("prior", part_digest(prior)) != part_digest(prior):
        raise UserError("the judge was fitted with another prior; fit it again with `ttdg fit-judge --again`")
    return JudgeAdapter(network, MorphologyPrior.from_part(prior), part, evidence, margin, always)


def load_regressor(part: Part, evidence: str) -> Regressor:
    prefix = f"{evidence}."
    tensors = {
        name.removeprefix(prefix): value for name, value in part.tensors.items() if name.startswith(prefix)
    }
    if not tensors:
        raise UserError(
            f"the judge was not fitted to {evidence!r} evidence; fit it again with `ttdg fit-judge --again --controls`"
        )
    return Regressor(**tensors)


METHOD = Method(
    build=judge,
    summary="believes, image by image, the reading that a source-fitted judge expects to score best",
    adapts="nothing",
    norm="EVAL",
    memory=False,
    forwards=4,
    backwards=0,
    predict="before",
    paper="this project",
    origin="margin 0.05, the loss that counts as harm; the regressor is fitted on simulated shifts of source images",
    needs=("BatchNorm", "encode/decode"),
    parts=("prior", "judge"),
    reset="episodic",
)
