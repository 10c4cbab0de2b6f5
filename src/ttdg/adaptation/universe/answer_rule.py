"""Which candidate answers an image of a learned site: the adapted prediction, or its mean with the unadapted one.

Where both predictions show a structure at the same place, their mean has the better boundary: it gains a little and
harms fewer images than the adapted prediction. Where they show it at different places, the mean often shows nothing,
and the adapted prediction is better (docs/measurements/learning.md, "Which prediction answers").

The rule depends on the anatomy (`ttdg.adaptation.universe.treatment`). Structures of steady size are always answered by
the adapted prediction: there learning moves boundaries, no structure is confused with another object, and a mean would
undo half of the gain. Where an image may show no structure, the site's judge chooses, because an unadapted prediction
that shows nothing may be right.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ttdg.adaptation.judge.method import choose
from ttdg.adaptation.universe.belief import mutual_dice
from ttdg.adaptation.universe.site_judge import ADAPTED, MEAN, UNADAPTED
from ttdg.types import Regions

AnswerRule = Literal["agreement", "judge", "adapted"]
Candidates = Float[Tensor, "3 b l h w"]

AGREEING = 0.7  # Dice of the unadapted and the adapted prediction above which they agree


def agreeing(P: Candidates, regions: Regions) -> Bool[Tensor, " b"]:
    """True for each image in which the unadapted and the adapted prediction show the same structures."""
    return mutual_dice(P[UNADAPTED], P[ADAPTED], regions) > AGREEING


def choose_candidates(
    rule: AnswerRule, gaining: bool, P: Candidates, members: Float[Tensor, "e b 3"], regions: Regions
) -> Int[Tensor, " b"]:
    """Index of the candidate that answers each image.

    Args:
        rule: "agreement" takes the mean where both predictions agree, otherwise the fallback; "judge" the candidate
            with the largest expected gain over the fallback; "adapted" the fallback.
        gaining: The fallback is the adapted prediction if true. If false, the site as a whole is expected to lose: the
            fallback is the unadapted prediction, and nothing is averaged.
        P: probabilities of the candidates.
        members: Dice of the candidates that each member of the site's judge expects.
        regions: labels of each region.
    """
    fallback = ADAPTED if gaining else UNADAPTED
    if rule == "judge":
        return choose(members, fallback, margin=0.0)
    chosen = torch.full((P.shape[1],), fallback, device=P.device)
    return torch.where(agreeing(P, regions), MEAN, chosen) if rule == "agreement" and gaining else chosen
