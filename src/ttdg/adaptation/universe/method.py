"""Adaptation guided by the universe: how far each image follows its batch is decided by how it then fits the universe.

After Lv et al., Test-Time Domain Generalization via Universe Learning, CVPR 2025. The paper descends on the
disagreement of the matching; measured on real sites, that descent does no better with the learned universe than with
a random one (`universe-gradient`, docs/decisions.md). What the universe does know is whether a segmentation looks
like the anatomy: so the adaptation is a set of readings of the batch, with BatchNorm's statistics mixed in layer by
layer as far as it helped at simulated hospitals, and each image takes the reading that the universe says fits. The
judge's regressor inside sees universe signals alone: energies, margins and areas of the matching to 𝒰, and which
reading they belong to.
"""

from torch import nn

from ttdg.adaptation.adapter import Adapter, Method
from ttdg.adaptation.judge.method import EvidenceKind, judge
from ttdg.adaptation.universe.gradient import Variant
from ttdg.errors import UserError
from ttdg.types import Part

VARIANTS: dict[str, EvidenceKind] = {
    "full": "universe",
    "no-universe": "no-universe",
    "random-universe": "random-universe",
    "no-class-mask": "no-class-mask",
}


def universe(
    network: nn.Module,
    prior: Part,
    part: Part,
    *,
    margin: float = 0.05,
    variant: Variant = "full",
) -> Adapter:
    """Every image's graph is matched to 𝒰 by itself: `no-consensus` and `pairwise` have nothing to take away here."""
    if variant not in VARIANTS:
        raise UserError(
            f"universe has no variant {variant!r}: it matches each image to the universe by itself, so nothing "
            f"lies between images to leave out; use {', '.join(VARIANTS)}, or universe-gradient"
        )
    return judge(network, prior, part, margin=margin, evidence=VARIANTS[variant])


METHOD = Method(
    build=universe,
    summary="takes, image by image, the reading of the batch that the universe of anatomy fits best",
    adapts="nothing",
    norm="EVAL",
    memory=False,
    forwards=4,
    backwards=0,
    predict="before",
    paper="after Lv et al., CVPR 2025",
    origin="margin 0.05, the loss that counts as harm; fitted on simulated shifts of source images",
    needs=("BatchNorm", "encode/decode"),
    parts=("prior", "judge"),
    reset="episodic",
)
