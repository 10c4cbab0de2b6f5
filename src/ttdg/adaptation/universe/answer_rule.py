"""Which candidate answers an image of a learned site: the adapted prediction, or its mean with the unadapted one.

Where both predictions show a structure at the same place, their mean has the better boundary: it gains a little and
harms fewer images than the adapted prediction. Where they show it at different places, the mean often shows nothing,
and the adapted prediction is better (docs/measurements.md, "The mean where both agree").

The rule depends on the anatomy (`ttdg.adaptation.universe.anatomy`). Structures of steady size are always answered by
the adapted prediction: there learning moves boundaries, no structure is confused with another object, and a mean would
undo half of the gain. Where an image may show no structure, the site's judge chooses, because an unadapted prediction
that shows nothing may be right.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ttdg.adaptation.judge.method import choose
from ttdg.adaptation.universe.anatomy import Anatomy
from ttdg.adaptation.universe.belief import mutual_dice
from ttdg.adaptation.universe.site_judge import ADAPTED, MEAN, UNADAPTED
from ttdg.types import Regions

AnswerRule = Literal["agreement", "judge", "adapted"]

RULES: Mapping[Anatomy, AnswerRule] = {
    "steady": "adapted",
    "varied": "agreement",
    "absent": "judge",
    "thin": "judge",  # thin structures are not learned, so that every answer is the first judge's
}
AGREEING = 0.7  # Dice of the unadapted and the adapted prediction above which they agree


def agreeing(P: Float[Tensor, "3 b l h w"], regions: Regions) -> Bool[Tensor, " b"]:
    """True for each image in which the unadapted and the adapted prediction show the same structures."""
    return mutual_dice(P[UNADAPTED], P[ADAPTED], regions) > AGREEING


def choose_candidates(
    rule: AnswerRule, gaining: bool, same: Bool[Tensor, " b"], members: Float[Tensor, "e b 3"]
) -> Int[Tensor, " b"]:
    """Index of the candidate that answers each image.

    Args:
        rule: "agreement" averages where `same` is true; "judge" takes the candidate with the largest expected gain over
            the fallback; "adapted" is always the adapted prediction, or the unadapted one if the site is expected to
            lose.
        gaining: False if the site as a whole is expected to lose. The fallback is then the unadapted prediction.
        same: see `agreeing`.
        members: Dice of the candidates that each member of the site's judge expects.
    """
    fallback = ADAPTED if gaining else UNADAPTED
    if rule == "judge":
        return choose(members, fallback, margin=0.0)
    chosen = torch.full_like(same, fallback, dtype=torch.long)
    return torch.where(same, MEAN, chosen) if rule == "agreement" and gaining else chosen
