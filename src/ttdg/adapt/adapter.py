"""What a method is: a callable that adapts to a batch, then answers it, and can go back to the source."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

Images = Float[Tensor, "b c h w"]
Logits = Float[Tensor, "b l *hw"]


@runtime_checkable
class Adapter(Protocol):
    """Adapters take no labels: there is no argument through which one could reach them."""

    network: nn.Module

    def __call__(self, images: Images) -> Logits:
        """Adapt to this batch, then answer it. The logits carry no gradient."""
        ...

    def reset(self) -> None:
        """Back to the source model, bit for bit."""
        ...


@dataclass(frozen=True)
class Method:
    """A method and what it declares of itself; the contract test holds it to every word."""

    build: Callable[..., Adapter]
    summary: str
    adapts: str  # what changes: "nothing", "BatchNorm γ, β", …
    norm: str  # BatchNorm statistics: EVAL, BATCH, TRAIN or MIX(ρ)
    memory: bool  # does a batch leave something behind for the next?
    forwards: int  # network passes a batch …
    backwards: int  # … and backward passes
    predict: Literal["before", "after"]  # the update
    paper: str
    origin: str  # where the default hyper-parameters come from
    needs: tuple[str, ...] = ()  # of the network: "BatchNorm", "encode/decode", "dropout", "batch ≥ 2"
    parts: tuple[str, ...] = ()  # from source time, in the order `build` takes them after the network
    reset: Literal["episodic", "online", "continual"] = "online"  # the policy it was published with


class Fixed:
    """An adapter without a gradient: the network answers in the norm mode it was given."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network.eval()

    @torch.no_grad()
    def __call__(self, images: Images) -> Logits:
        return self.network(images)

    def reset(self) -> None:
        """Nothing was changed."""


class GradientAdapter:
    """One optimiser over chosen parameters and one objective of the logits: `steps` updates a batch.

    `predict="before"` answers with the logits of the last forward before its update (TENT, SAR);
    `predict="after"` pays one more forward. A batch whose loss is not finite updates nothing.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Callable[[Logits], Tensor],
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        steps: int = 1,
        predict: Literal["before", "after"] = "before",
        optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    ) -> None:
        self.network = network.eval().requires_grad_(False)
        self.objective, self.steps, self.predict = objective, steps, predict
        self.parameters = [parameter.requires_grad_(True) for parameter in parameters]
        fused = all(parameter.is_cuda for parameter in self.parameters)  # one kernel instead of some hundred
        self._optimiser = lambda: optimiser(self.parameters, lr=lr, **({"fused": True} if fused else {}))
        self._source = {name: value.clone() for name, value in network.state_dict().items()}
        self.reset()

    def __call__(self, images: Images) -> Logits:
        for _ in range(self.steps):
            with torch.enable_grad():
                logits = self.network(images)
                loss = self.objective(logits)
            self._update(loss)
        if self.predict == "after":
            with torch.no_grad():
                logits = self.network(images)
        return logits.detach()

    def _update(self, loss: Tensor) -> None:
        if not torch.isfinite(loss):
            return
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    @torch.no_grad()
    def reset(self) -> None:
        for name, value in self.network.state_dict().items():
            value.copy_(self._source[name])
        self.optimiser = self._optimiser()
