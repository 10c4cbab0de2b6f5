"""The method's own answers in a stream whose answers are averaged over views.

A row with views and the row without them need the same adaptation: the stream runs once, and both are scored.
"""

import time
from dataclasses import replace

from torch import Tensor

from ttdg.adaptation.answer_views import AveragedAnswers
from ttdg.evaluation.streams import Answer, wait_for
from ttdg.networks.passes import Passes


class OwnAnswers:
    """Listens to an adapter, and keeps the method's own answer to the last batch and what the other views cost.

    Args:
        adapter: The adapter whose answers are averaged.
        passes: The counter of all passes through networks.

    Attributes:
        views: Passes that the other views have taken.
    """

    def __init__(self, adapter: AveragedAnswers, passes: Passes) -> None:
        self.passes, self.views = passes, Passes()
        self._logits: Tensor | None = None
        self._at, self._before = 0.0, Passes()
        adapter.own_answer = self._keep

    def _keep(self, logits: Tensor) -> None:
        wait_for(logits.device)
        self._logits, self._at, self._before = logits, time.perf_counter(), replace(self.passes)

    def take(self, answer: Answer) -> Answer:
        """Return the method's own answer in place of the mean; called once, as soon as the mean is there."""
        assert self._logits is not None, "the adapter has answered no batch"
        own, self._logits = self._logits, None
        self.views.forwards += self.passes.forwards - self._before.forwards
        self.views.backwards += self.passes.backwards - self._before.backwards
        others = (time.perf_counter() - self._at) / len(answer.cases)
        return replace(answer, logits=own, seconds=answer.seconds - others)
