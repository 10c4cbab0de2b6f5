"""The moving average of the weights over training."""

import copy
from typing import Any

import torch
from torch import nn

from ttdg.networks.averaging import ema_update


class WeightAverage:
    """An exponential moving average of a learner's parameters and buffers, BatchNorm statistics included.

    `learner` holds the average. The decay grows with the number n of updates, as (1 + n)/(10 + n), up to `decay`: early
    weights are forgotten quickly. Integer buffers are copied. The rate is a device tensor, so that CUDA graphs can
    vary it.
    """

    def __init__(self, learner: nn.Module, decay: float) -> None:
        self.learner: Any = copy.deepcopy(learner).requires_grad_(False).eval()
        self.decay, self.updates = decay, 0
        pairs = list(zip(self.learner.state_dict().values(), learner.state_dict().values(), strict=True))
        floating = [pair for pair in pairs if pair[0].is_floating_point()]
        self._averages, self._values = [own for own, _ in floating], [value for _, value in floating]
        self._integers = [pair for pair in pairs if not pair[0].is_floating_point()]
        self._rate = torch.zeros((), device=self._averages[0].device)

    def advance(self) -> None:
        """Set the rate of the next update."""
        self.updates += 1
        self._rate.fill_(1 - min(self.decay, (1 + self.updates) / (10 + self.updates)))

    def update(self) -> None:
        """Move the average towards the current weights; may be recorded in a CUDA graph."""
        ema_update(self._averages, self._values, self._rate)
        for own, value in self._integers:
            own.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """Return the average and the number of updates."""
        return {"learner": self.learner.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore an average."""
        self.learner.load_state_dict(state["learner"])
        self.updates = int(state["updates"])
