"""The method "universe-choice": chooses for each image the prediction that fits the universe best.

After Lv et al., Test-Time Domain Generalization via Universe Learning, CVPR 2025. The paper descends on the
disagreement of the matching. Measured on real sites, this descent gains no more with the learned universe than with a
random one (`universe-gradient`, docs/decisions.md). But the universe can tell whether a segmentation looks like the
anatomy. This method therefore predicts the batch several times, with different shares of the batch statistics in
BatchNorm, and chooses for each image by the fit to the universe. It is the judge (`ttdg.adaptation.judge`) with a
regressor that uses universe signals only: energies, margins and areas of the matching to 𝒰, and the candidate's index.
"""

from torch import nn

from ttdg.adaptation.adapter import Method
from ttdg.adaptation.judge.method import MARGIN, EvidenceKind, JudgeAdapter, judge
from ttdg.adaptation.options import Option
from ttdg.adaptation.universe.gradient import Variant
from ttdg.errors import UserError
from ttdg.types import Part

VARIANTS: dict[str, EvidenceKind] = {
    "full": "universe",
    "no-universe": "no-universe",
    "random-universe": "random-universe",
    "no-class-mask": "no-class-mask",
}


def universe_choice(
    network: nn.Module,
    prior: Part,
    part: Part,
    *,
    margin: float = 0.05,
    variant: Variant = "full",
) -> JudgeAdapter:
    """Build the judge with the evidence of the variant.

    "no-consensus" and "pairwise" are refused: the graph of every image is matched to 𝒰 by itself, so that there is no
    matching between images to leave out.
    """
    if variant not in VARIANTS:
        raise UserError(
            f"universe-choice has no variant {variant!r}: it matches each image to the universe by itself, so that "
            f"there is no matching between images to leave out; use {', '.join(VARIANTS)}, or universe-gradient"
        )
    return judge(network, prior, part, margin=margin, evidence=VARIANTS[variant])


METHOD = Method(
    build=universe_choice,
    summary="chooses, for each image, the prediction that fits the universe of anatomy best",
    adapts="nothing",
    norm="EVAL",
    memory=False,
    forwards=4,
    backwards=0,
    predict="before",
    access="source labels",
    single_precision=True,
    flips=True,
    paper="after Lv et al., CVPR 2025",
    origin="margin 0.05, the loss that counts as harm; fitted on simulated shifts of source images",
    published=None,
    options={
        "margin": MARGIN,
        "variant": Option(
            "full, or an ablation: no universe signals, a random universe, or points of any tissue for every node",
            "this project; names after the ablations of the paper",
        ),
    },
    parts=("prior", "judge"),
    reset="episodic",
)
