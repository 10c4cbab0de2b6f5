"""One update of source training: forward, loss, backward and the optimisers' steps."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ttdg.networks.cuda_graph import Replay


class Optimisers:
    """The network's optimiser and the prior's, as one.

    For a step that is `recorded` their rates lie on the device, where the recording reads them.
    """

    def __init__(self, each: list[Any], recorded: bool = False) -> None:
        self.each, self.full = each, [optimiser.param_groups[0]["lr"] for optimiser in each]
        for optimiser in each if recorded else ():
            for group in optimiser.param_groups:
                group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
            optimiser.optimizer._warned_capturable_if_run_uncaptured = True  # while it warms up

    def rate(self, share: float) -> None:
        """The next steps at `share` of the full rates."""
        for optimiser, lr in zip(self.each, self.full, strict=True):
            for group in optimiser.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(share * lr)
                else:
                    group["lr"] = share * lr

    def step(self) -> None:
        for optimiser in self.each:
            optimiser.step()
        self.clear()

    def clear(self) -> None:
        for optimiser in self.each:
            optimiser.zero_grad(set_to_none=True)

    def state_dict(self) -> list[Any]:
        return [optimiser.state_dict() for optimiser in self.each]

    def load_state_dict(self, states: list[Any]) -> None:
        """What the optimisers remember. Their options are the recipe's, and how they run is this machine's."""
        for optimiser, state in zip(self.each, states, strict=True):
            own = optimiser.state_dict()["param_groups"]
            optimiser.load_state_dict({**state, "param_groups": own})


class Update:
    """Where it can be `recorded`, on one GPU, a replay: Python takes longer than the device for a small batch."""

    def __init__(self, fabric: Any, learner: Any, optimisers: Optimisers, recorded: bool) -> None:
        self.fabric, self.learner, self.optimisers = fabric, learner, optimisers
        self._replay = Replay(lambda: () if recorded else None)

    def __call__(
        self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, "b h w"], share: float
    ) -> Float[Tensor, ""]:
        """At `share` of the full learning rates; the loss before the update."""
        self.optimisers.rate(share)
        return self._replay(self._step, images, labels)

    def _step(self, images: Tensor, labels: Tensor) -> Tensor:
        self.optimisers.clear()  # a recording that failed may have left gradients
        self.learner.train()
        loss = self.learner(images, labels)
        self.fabric.backward(loss)
        self.optimisers.step()
        return loss.detach()
