"""Interfaces: what an adapter does, and the optional abilities that some adapters have."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

Images = Float[Tensor, "b c *hw"]  # volumes (b c d h w) only where a method declares them
Logits = Float[Tensor, "b l *hw"]
Progress = Callable[[int, int], None]  # receives the number of finished steps and of all steps


@runtime_checkable
class Adapter(Protocol):
    """Adapts a network to the batches of a stream and predicts them, without labels."""

    network: nn.Module

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch and return its logits, detached from the graph."""
        ...

    def reset(self) -> None:
        """Restore the source model, bit for bit."""
        ...


@runtime_checkable
class FrozenPredictor(Protocol):
    """An adapter that can predict without another update, as the offline and folder streams ask."""

    def predict_frozen(self, images: Images) -> Logits:
        """Predict with the adapted state, and leave that state unchanged."""
        ...


@runtime_checkable
class SiteLearner(Adapter, FrozenPredictor, Protocol):
    """An adapter that can learn a whole unlabelled site before it predicts, as the folder stream asks."""

    def learn(self, site: Iterable[Images], progress: Progress = lambda done, total: None) -> None:
        """Learn from all batches of a site; later predictions come from `predict_frozen`.

        `progress` is called after every step with the number of finished steps and of all steps.
        """
        ...


@runtime_checkable
class Resumable(Protocol):
    """An adapter whose learned state can be saved, and loaded into a new adapter of the same network and options."""

    def state(self) -> dict[str, Tensor]:
        """All state that a continued run depends on, by name; the tensors are copies on the CPU."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state; raise `UserError` if it belongs to another network or another version."""
        ...


@dataclass(frozen=True)
class Assessment:
    """The quality that an adapter predicts for its own answers to one batch."""

    choices: tuple[str, ...]  # name of the candidate that was chosen for each image
    dice: Float[Tensor, " b"]  # predicted Dice of the answer
    half_width: Float[Tensor, " b"]  # half the width of the 80 % interval of `dice`
    unadapted: Float[Tensor, " b"] | None = (
        None  # predicted Dice of the answer that is kept if no gain is expected
    )


@runtime_checkable
class Exportable(Protocol):
    """An adapter whose answers come from one network with fixed weights, once it has learned."""

    def learned_network(self) -> nn.Module:
        """The network that answers; it is the adapter's own, not a copy."""
        ...


@runtime_checkable
class SelfAssessing(Protocol):
    """An adapter that predicts the Dice of its own answers."""

    def assessment(self) -> Assessment | None:
        """The assessment of the last batch, or None before the first batch."""
        ...


@runtime_checkable
class Remarking(Protocol):
    """An adapter that can say in words how it treated the site."""

    def remarks(self) -> tuple[str, ...]:
        """Sentences that a user should read with the latest answers; none if nothing was unusual."""
        ...


@runtime_checkable
class Counting(Protocol):
    """An adapter that counts events, such as resets after a collapse. Benchmark records include the counts."""

    counts: dict[str, int]
