"""The judge: per image, which of several readings of a batch to believe, without a label.

Candidates come from one pass over stacked readings (BatchNorm statistics mixed more or less, mirrored images). A small
regressor, fitted at source time on simulated shifts of held-out source images, predicts each candidate's Dice from what
can be seen: shape, entropy, agreement, and how the prediction fits the universe. The answer changes only where the
predicted gain, less one standard deviation between the regressor's members, is more than `margin`, the loss that would
count as harm; everywhere else it is the source network's own, averaged with its mirrored reading.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ttdg.adapt import batchnorm, halves
from ttdg.adapt.adapter import Adapter, Images, Logits, Method
from ttdg.adapt.candidates import answer, candidates_of
from ttdg.adapt.mixing import set_mixing
from ttdg.adapt.readings import READINGS
from ttdg.adapt.regressor import Prediction, Regressor, features
from ttdg.adapt.signals import signals
from ttdg.errors import UserError
from ttdg.parts import Part, digest
from ttdg.prior import MorphologyPrior

EvidenceKind = Literal["all", "universe", "no-universe", "random-universe"]
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
        self, network: nn.Module, prior: MorphologyPrior, judge: Part, evidence: EvidenceKind, margin: float
    ) -> None:
        device = next(network.parameters()).device
        self.network = network.eval().requires_grad_(False)
        self.prior = prior.requires_grad_(False).to(device)
        self.regions = {name: tuple(labels) for name, labels in judge.settings["regions"].items()}
        self.names = judge.settings["signals"][evidence]
        self.regressor = load_regressor(judge, evidence).to(device)
        if evidence == "random-universe":
            self.prior = self.prior.with_random_universe()
        set_mixing(self.network, judge.tensors["mixing"].tolist())
        self.candidates = tuple(candidate.name for candidate in candidates_of(READINGS))
        self.margin, self.fallback = margin, self.candidates.index(FALLBACK)
        self.verdict: Verdict | None = None

    @torch.no_grad()
    def __call__(self, images: Images) -> Logits:
        evidence = answer(self.network, self.prior, images)
        batchnorm.use(self.network, batchnorm.EVAL)  # its groups were this batch's
        found = signals(evidence, self.regions, self.prior, only=self.names)
        predicted = self.regressor.predict(features(found, self.names))
        chosen = choose(predicted.members, self.fallback, self.margin)
        self.verdict = Verdict(chosen, predicted, self.candidates)
        return evidence.logits[chosen, torch.arange(len(images), device=images.device)]

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
    network: nn.Module, prior: Part, part: Part, *, margin: float = 0.05, evidence: EvidenceKind = "all"
) -> Adapter:
    batchnorm.use(halves.check(network), batchnorm.EVAL)
    if part.settings.get("prior", digest(prior)) != digest(prior):
        raise UserError("the judge was fitted with another prior; fit it again with `ttdg fit-judge --again`")
    return JudgeAdapter(network, MorphologyPrior.from_part(prior), part, evidence, margin)


def load_regressor(part: Part, evidence: str) -> Regressor:
    prefix = f"{evidence}."
    tensors = {
        name.removeprefix(prefix): value for name, value in part.tensors.items() if name.startswith(prefix)
    }
    if not tensors:
        raise UserError(
            f"the judge was not fitted to {evidence!r} evidence; fit it again with `ttdg fit-judge`"
        )
    weight = tensors["weights.0"]
    model = Regressor(weight.shape[1], tensors["biases.2"].shape[-1] - 1, weight.shape[0])
    model.load_state_dict(tensors)
    return model.requires_grad_(False).eval()


METHOD = Method(
    build=judge,
    summary="believes, image by image, the reading that a source-fitted judge expects to score best",
    adapts="nothing",
    norm="EVAL",
    memory=False,
    forwards=7,
    backwards=0,
    predict="before",
    paper="this project",
    origin="margin 0.05, the loss that counts as harm; the regressor is fitted on simulated shifts of source images",
    needs=("BatchNorm", "encode/decode"),
    parts=("prior", "judge"),
    reset="episodic",
)
