"""How the method "universe" learns and answers each kind of anatomy.

The kinds are those of `ttdg.adaptation.universe.anatomy`. What helps one kind can harm another:

- Labels are carried along the matching where structures are steady in size. Elsewhere carried labels put structures
  where there are none.
- Labels are anchored where sizes vary or structures may be absent: an image in which the teacher and the judge show
  the same structures is learned from labels of both. Learning then finds more structures without moving the boundaries
  of those that were found before. Where structures are steady, learning gains by moving boundaries, and nothing is
  anchored.
- `rule` says which prediction answers an image (`ttdg.adaptation.universe.answer_rule`).
- Thin structures are not learned.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ttdg.adaptation.universe.anatomy import Anatomy
from ttdg.adaptation.universe.answer_rule import AnswerRule

CARRIED = 0.5  # share of the carried labels in the labels of the least sure image
ANCHORED = 0.5  # share of the judge's labels in images in which they agree with the teacher's


class Treatment(NamedTuple):
    """What is done with a kind of anatomy."""

    rule: AnswerRule
    learned: bool = True
    carries: bool = False
    anchors: bool = False


TREATMENTS: Mapping[Anatomy, Treatment] = {
    "steady": Treatment("adapted", carries=True),
    "varied": Treatment("agreement", anchors=True),
    "absent": Treatment("judge", anchors=True),
    "thin": Treatment("judge", learned=False),
}
