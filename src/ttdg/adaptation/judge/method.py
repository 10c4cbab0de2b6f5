"""The method "judge": chooses a candidate for every image by one of several kinds of evidence.

The choice differs from the fallback only where the predicted gain in Dice, minus one standard deviation over the
ensemble's members, exceeds `margin`. The default margin is the loss that counts as harm. The fallback is the source
network's prediction, averaged over the image and its mirror image, and over three sizes if the readings have them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ttdg.adaptation.adapter import Adapter, Assessment, Images, Logits, Method, SelfAssessing
from ttdg.adaptation.judge.candidates import THREE_SIZES, candidates_of, predict_candidates
from ttdg.adaptation.judge.mixing import layer_weights
from ttdg.adaptation.judge.reading_passes import predict_readings
from ttdg.adaptation.judge.readings import READING_SETS
from ttdg.adaptation.judge.regressor import Prediction, Regressor, feature_matrix
from ttdg.adaptation.judge.signals import prediction_signals
from ttdg.adaptation.options import Option, Range
from ttdg.checkpoints import reading_part
from ttdg.errors import UserError, suggestion
from ttdg.metrics import region_probabilities
from ttdg.networks import batchnorm
from ttdg.networks.capture import CaptureGuard
from ttdg.networks.cuda_graph import GraphRunner
from ttdg.prior import MorphologyPrior
from ttdg.prior.locations import PointLocations
from ttdg.prior.universe_signals import universe_signals
from ttdg.types import Part

EvidenceKind = Literal["all", "universe", "no-universe", "random-universe", "no-class-mask"]
UNIVERSES: dict[str, Callable[[MorphologyPrior], MorphologyPrior]] = {
    "learned": lambda prior: prior,
    "random": MorphologyPrior.with_random_universe,
    "untyped": MorphologyPrior.without_class_mask,
}


@dataclass(frozen=True)
class EvidenceSpec:
    """What a judge may use: which universe, which candidates, and which signals."""

    universe: str  # a key of UNIVERSES
    fused: bool  # True if candidates that average in the universe's segmentation may be chosen
    uses_signal: Callable[[str], bool]  # True for the names of the signals that the regressor uses


EVIDENCE_SPECS: dict[EvidenceKind, EvidenceSpec] = {
    "all": EvidenceSpec("learned", True, lambda name: True),
    "universe": EvidenceSpec("learned", True, lambda name: name.startswith("universe")),
    "no-universe": EvidenceSpec("learned", False, lambda name: not name.startswith("universe")),
    "random-universe": EvidenceSpec("random", True, lambda name: name.startswith("universe")),
    "no-class-mask": EvidenceSpec("untyped", True, lambda name: name.startswith("universe")),
}
FALLBACK = "source, both ways"  # name of the candidate that is kept where no gain is expected


def fallback_of(candidates: Sequence[str]) -> int:
    """The index of the fallback: the average over three sizes, if it is a candidate."""
    return candidates.index(THREE_SIZES if THREE_SIZES in candidates else FALLBACK)


@dataclass(frozen=True)
class Verdict:
    """The judge's decisions for one batch."""

    chosen: Int[Tensor, " b"]  # index of the chosen candidate of each image
    prediction: Prediction  # predicted Dice of all candidates
    candidates: tuple[str, ...]  # names of the candidates


class JudgeAdapter(Adapter, SelfAssessing):
    """Predicts every candidate and returns, for each image, the one with the best predicted Dice.

    The adapter uses no gradient and leaves the network's weights and buffers unchanged. `verdict` holds the decisions
    for the last batch.
    """

    def __init__(
        self,
        network: nn.Module,
        prior: Part,
        judge: Part,
        evidence: EvidenceKind,
        margin: float,
        always: str = "",
    ) -> None:
        if judge.settings.get("prior", prior.digest) != prior.digest:
            raise UserError("the judge was fitted with another prior; fit the part 'judge' again")
        device = next(network.parameters()).device
        self.network = network.eval().requires_grad_(False)
        batchnorm.use_if_any(network, batchnorm.EVAL)
        self._replay = GraphRunner(CaptureGuard(network))
        learned = MorphologyPrior.from_part(prior).requires_grad_(False).to(device)
        spec = EVIDENCE_SPECS[evidence]
        self.prior = UNIVERSES[spec.universe](learned)
        with reading_part("judge"):
            self.regions = {name: tuple(labels) for name, labels in judge.settings["regions"].items()}
            if not all(type(label) is int for labels in self.regions.values() for label in labels):
                raise UserError("the regions of the judge are no labels; fit the part 'judge' again")
            self.regressor = load_regressor(judge, evidence).to(device)
            self.signal_names: list[str] = judge.settings["signals"][evidence]
            self.readings = READING_SETS[judge.settings.get("readings", "seven")]
            self.locations = PointLocations(*judge.tensors[f"places.{spec.universe}"].to(device))
            self.mixing = layer_weights(self.network, judge.tensors["mixing"].tolist())
            signals = len(self.regressor.mean) - len(self.signal_names)
        self.candidates = candidates_of(self.readings, fused=spec.fused)
        self.candidate_names = tuple(candidate.name for candidate in self.candidates)
        if signals != len(self.candidates):
            raise UserError("the judge was fitted by an older version; fit the part 'judge' again")
        if always and always not in self.candidate_names:
            raise UserError(f"unknown candidate {always!r}{suggestion(always, self.candidate_names)}")
        self.margin = 1e9 if always else margin
        self.fallback = self.candidate_names.index(always) if always else fallback_of(self.candidate_names)
        self.verdict: Verdict | None = None

    @torch.no_grad()
    def __call__(self, images: Images) -> Logits:
        """Return the log-probabilities of the chosen candidate of each image."""
        return self.read(images)[0]

    @torch.no_grad()
    def read(self, images: Images) -> tuple[Logits, Float[Tensor, "b n y x"]]:
        """Return what a call returns, and the features of the source network, projected by the prior."""
        logits, features, chosen, *prediction = self._replay(self._judge, images)
        self.verdict = Verdict(chosen, Prediction(*prediction), self.candidate_names)
        return logits, features

    def _judge(self, images: Images) -> tuple[Tensor, ...]:
        """Logits, features, choices and the fields of `Prediction`. On a GPU this is recorded as a CUDA graph."""
        read = predict_readings(self.network, self.prior, images, readings=self.readings, mixing=self.mixing)
        batchnorm.use_if_any(self.network, batchnorm.EVAL)  # the grouped mode fits this batch only
        predictions = predict_candidates(read, self.prior, self.candidates)
        P, signals = predictions.logits.softmax(2), dict[str, Tensor]()
        if any(name.startswith("universe") for name in self.signal_names):
            signals |= universe_signals(
                self.prior, self.locations, predictions.projected, P, self.regions, predictions.weight
            )
        if not all(name.startswith("universe") for name in self.signal_names):
            R = region_probabilities(predictions.logits.flatten(0, 1), self.regions)
            signals |= prediction_signals(predictions, P, R.unflatten(0, P.shape[:2]), list(self.regions))
        predicted = self.regressor.predict(feature_matrix(signals, self.signal_names))
        chosen = choose(predicted.members, self.fallback, self.margin)
        logits = predictions.logits[chosen, torch.arange(len(images), device=images.device)]
        return logits, read.V[0], chosen, predicted.dice, predicted.half_width, predicted.members

    def assessment(self) -> Assessment | None:
        """Chosen candidates of the last batch with their predicted Dice; None before the first batch."""
        if self.verdict is None:
            return None
        chosen, prediction = self.verdict.chosen, self.verdict.prediction
        dice, half_width = (
            x.gather(1, chosen[:, None])[:, 0] for x in (prediction.dice, prediction.half_width)
        )
        names = tuple(self.candidate_names[i] for i in chosen.tolist())
        return Assessment(names, dice, half_width, prediction.dice[:, self.fallback])

    def reset(self) -> None:
        """Forget the last verdict; there is no other state."""
        self.verdict = None


def choose(
    members: Float[Tensor, "e b k"], fallback: int, margin: float, deviations: float = 1.0
) -> Int[Tensor, " b"]:
    """Choose the candidate with the largest cautious gain over the fallback, if that gain exceeds `margin`.

    Args:
        members: Dice predicted by each ensemble member for every image and candidate. NaN counts as a loss.
        fallback: index of the candidate that is kept otherwise.
        margin: smallest gain in Dice that is acted on.
        deviations: the cautious gain is the members' mean gain minus this many standard deviations over the members.

    Returns:
        The index of the chosen candidate of each image.
    """
    gain = (members - members[..., fallback, None]).nan_to_num(-1.0)
    uncertainty = deviations * gain.std(0) if len(gain) > 1 else 0.0
    cautious, best = (gain.mean(0) - uncertainty).max(1)
    return torch.where(cautious > margin, best, fallback)


def judge(
    network: nn.Module,
    prior: Part,
    part: Part,
    *,
    margin: float = 0.05,
    evidence: EvidenceKind = "all",
    always: str = "",
) -> JudgeAdapter:
    """Build the adapter from the parts "prior" and "judge"."""
    return JudgeAdapter(network, prior, part, evidence, margin, always)


def load_regressor(part: Part, evidence: str) -> Regressor:
    """The regressor that was fitted for this kind of evidence."""
    if not any(name.startswith(f"{evidence}.") for name in part.tensors):
        raise UserError(
            f"the judge was not fitted to {evidence!r} evidence; fit the part 'judge' again, with its controls"
        )
    return Regressor.from_part(part, f"{evidence}.")


MARGIN = Option(
    "smallest predicted gain in Dice for which an image leaves the fallback; inf never leaves it",
    "this project: 0.05 is the loss that counts as harm",
    Range(0.0, endless=True),
)
METHOD = Method(
    build=judge,
    summary="chooses, for each image, the prediction whose Dice a regressor fitted at the source expects to be best",
    adapts="nothing",
    norm="EVAL",
    memory=False,
    forwards=4,
    backwards=0,
    predict="before",
    access="source labels",
    single_precision=True,
    flips=True,
    paper="this project",
    origin="margin 0.05, the loss that counts as harm; the regressor is fitted on simulated shifts of source images",
    published=None,
    options={
        "margin": MARGIN,
        "evidence": Option(
            "signals that the judge may use: all, those of the universe, all others, or those of a control universe",
            "this project: all signals",
        ),
        "always": Option(
            "name of a candidate that is chosen for every image, as a control; empty lets the judge choose",
            "this project",
        ),
    },
    parts=("prior", "judge"),
    reset="episodic",
)
