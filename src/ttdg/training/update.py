"""One training step: forward pass, loss, backward pass and optimiser steps."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ttdg.networks.cuda_graph import GraphRunner
from ttdg.training.averaging import WeightAverage


class Optimisers:
    """The optimisers of the network and of the prior, used as one.

    If the step is `recorded` in a CUDA graph, the learning rates are device tensors, so that replays can vary them.
    """

    def __init__(self, optimisers: list[Any], recorded: bool = False) -> None:
        self.optimisers = optimisers
        self.base_rates = [optimiser.param_groups[0]["lr"] for optimiser in optimisers]
        for optimiser in optimisers if recorded else ():
            for group in optimiser.param_groups:
                group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
            # No warning about the uncaptured steps that precede the recording.
            optimiser.optimizer._warned_capturable_if_run_uncaptured = True

    def rate(self, share: float) -> None:
        """Set the learning rates to `share` of their initial values."""
        for optimiser, lr in zip(self.optimisers, self.base_rates, strict=True):
            for group in optimiser.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(share * lr)
                else:
                    group["lr"] = share * lr

    def step(self) -> None:
        """Update the parameters, then clear the gradients."""
        for optimiser in self.optimisers:
            optimiser.step()
        self.clear()

    def clear(self) -> None:
        """Set all gradients to None."""
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)

    def state_dict(self) -> list[Any]:
        """Return the state of each optimiser."""
        return [optimiser.state_dict() for optimiser in self.optimisers]

    def load_state_dict(self, states: list[Any]) -> None:
        """Restore moments and step counts; the options, such as the learning rate, stay those of this run."""
        for optimiser, state in zip(self.optimisers, states, strict=True):
            options = optimiser.state_dict()["param_groups"]
            optimiser.load_state_dict({**state, "param_groups": options})


class Update:
    """A callable training step, which also updates the `average` of the weights if there is one.

    On one GPU the step is `recorded` as a CUDA graph and replayed: for small batches, launching the kernels from
    Python takes longer than running them.
    """

    def __init__(
        self,
        fabric: Any,
        learner: Any,
        optimisers: Optimisers,
        recorded: bool,
        average: WeightAverage | None = None,
    ) -> None:
        self.fabric, self.learner, self.optimisers, self.average = fabric, learner, optimisers, average
        self._replay = GraphRunner() if recorded else None

    def __call__(
        self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, "b h w"], share: float, *styles: Tensor
    ) -> Float[Tensor, ""]:
        """Update the learner at `share` of the initial learning rates; return the loss before the update.

        `styles` are further arguments of the learner: the weights and partners of MixStyle.
        """
        self.optimisers.rate(share)
        if self.average is not None:
            self.average.advance()
        if self._replay is None:
            return self._step(images, labels, *styles)
        return self._replay(self._step, images, labels, *styles)

    def _step(self, images: Tensor, labels: Tensor, *styles: Tensor) -> Tensor:
        self.optimisers.clear()  # a failed recording may have left gradients
        self.learner.train()
        loss = self.learner(images, labels, *styles)
        self.fabric.backward(loss)
        self.optimisers.step()
        if self.average is not None:
            self.average.update()
        return loss.detach()
