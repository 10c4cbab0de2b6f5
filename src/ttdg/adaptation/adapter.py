"""What a method is: a callable that adapts to a batch, then answers it, and can go back to the source."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.options import Option
from ttdg.errors import UserError
from ttdg.networks.capture import CaptureGuard, clear_optimiser, make_capturable
from ttdg.networks.cuda_graph import Replay

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


@runtime_checkable
class FrozenPredictor(Protocol):
    """An adapter that can answer without another update. The offline stream uses it for its second pass."""

    def predict_frozen(self, images: Images) -> Logits:
        """Logits of the adapted state, which does not change."""
        ...


@dataclass(frozen=True)
class Assessment:
    """What a method expects of its own answers to one batch."""

    choices: tuple[str, ...]  # of each image: which candidate was taken
    dice: Float[Tensor, " b"]  # expected Dice of the answer
    half_width: Float[Tensor, " b"]  # of its 80 % interval


@runtime_checkable
class SelfAssessing(Protocol):
    """An adapter that predicts the Dice of its own answers."""

    def assessment(self) -> Assessment | None:
        """The assessment of the last batch; None before the first."""
        ...


@runtime_checkable
class Counting(Protocol):
    """An adapter that counts events, such as recoveries. The counts go into the records of a benchmark."""

    counts: Mapping[str, int]


@dataclass(frozen=True)
class Method:
    """A method and what it declares of itself; the contract test holds it to every word."""

    build: Callable[..., Adapter]
    summary: str
    adapts: str  # what changes: "nothing", "BatchNorm γ, β", …
    norm: str  # BatchNorm statistics: EVAL, BATCH, MIX(option or number), …: MODES of the contract test
    memory: bool  # does a batch leave something behind for the next?
    forwards: int  # network passes a batch with default options: six views are six; where the data decides, the most;
    backwards: int  # … and backward passes; of a network in two halves, those through the busier half
    predict: Literal["before", "after"]  # the update
    paper: str
    origin: str  # where the default hyper-parameters come from
    options: Mapping[str, Option] = field(default_factory=dict)  # one entry for each keyword of `build`
    needs: tuple[str, ...] = ()  # of the network: "BatchNorm", "encode/decode", "dropout", "batch ≥ 2"
    parts: tuple[str, ...] = ()  # from source time, in the order `build` takes them after the network
    reset: Literal["episodic", "online", "continual"] = "online"  # the policy it was published with
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # for `ttdg tune`, if not lr × steps

    @property
    def reconstructed(self) -> bool:
        """Nobody published its code, nor all it would take to write it."""
        return self.paper.startswith("reconstructed")


class Fixed:
    """An adapter without a gradient: the network answers in the norm mode it was given."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network.eval()
        self._replay = Replay(CaptureGuard(network))

    @torch.no_grad()
    def __call__(self, images: Images) -> Logits:
        return self._replay(self.network, images)

    def reset(self) -> None:
        """Nothing was changed."""


class GradientAdapter:
    """One optimiser over chosen parameters and one objective of the logits: `steps` updates a batch.

    `predict="before"` answers with the logits of the last forward before its update (TENT, SAR);
    `predict="after"` pays one more forward. A batch whose loss is not finite updates nothing.
    Methods with another step write `__call__` anew and keep the rest: parameters, optimiser, the way back. Everything
    that moves does so in place, so that on a GPU a whole call can be recorded and replayed.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Callable[..., Tensor],
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        steps: int = 1,
        predict: Literal["before", "after"] = "before",
        optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    ) -> None:
        self.network = network.eval().requires_grad_(False)
        self.objective, self.lr, self.steps, self.predict = objective, lr, steps, predict
        self.parameters: list[Tensor] = [parameter.requires_grad_(True) for parameter in parameters]
        if not self.parameters:
            raise UserError(
                "this network has none of the parameters that the method adapts (BatchNorm with affine=False has no γ "
                "and β); use method 'norm', which adapts none, or one that adapts all weights"
            )
        self.loss = torch.tensor(torch.nan)  # of the last step
        self._fused = all(p.is_cuda for p in self.parameters)  # one kernel instead of some hundred
        self.optimiser = optimiser(self.parameters, lr=lr, **({"fused": True} if self._fused else {}))
        self._replay = Replay(
            CaptureGuard(network, make_capturable(self.optimiser) if self._fused else False)
        )
        self._source = {name: value.clone() for name, value in network.state_dict().items()}
        names = {id(parameter): name for name, parameter in network.named_parameters()}
        self._start = [  # a parameter outside the network, a prompt for instance, starts as it was given
            self._source[names[id(p)]] if id(p) in names else p.detach().clone() for p in self.parameters
        ]
        self.reset()

    def __call__(self, images: Images) -> Logits:
        logits, self.loss = self._replay(self._adapt, images)
        return logits

    def _adapt(self, images: Images) -> tuple[Logits, Tensor]:
        """The answer, and the loss of the last step."""
        self.optimiser.zero_grad(set_to_none=True)  # a recording that failed may have left some
        for _ in range(self.steps):
            with torch.enable_grad():
                logits = self.network(images)
                loss = self.objective(logits)
            self._update(loss)
        if self.predict == "after":
            with torch.no_grad():
                logits = self.network(images)
        return logits.detach(), self.loss

    def _update(self, loss: Tensor) -> None:
        self.loss, finite = loss.detach(), torch.isfinite(loss.detach())
        if self._fused:  # the optimiser skips the step by itself, and the host does not wait for the loss
            self.optimiser.found_inf = (~finite).float()  # type: ignore[attr-defined]
        elif not finite:
            return
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Of a loss with respect to what is adapted; the network's `grad` stays empty."""
        return list(torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True))

    def apply(self, gradients: Sequence[Tensor], lr: float | None = None) -> None:
        """One step of the optimiser with these gradients, at another rate where one is given."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr if lr is None else lr
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    @torch.no_grad()
    def restart(self) -> None:
        """What moves, back at the source with a fresh optimiser: an episodic method begins every batch so."""
        torch._foreach_copy_(self.parameters, self._start)
        clear_optimiser(self.optimiser)

    @torch.no_grad()
    def reset(self) -> None:
        for name, value in self.network.state_dict().items():
            value.copy_(self._source[name])
        torch._foreach_copy_(self.parameters, self._start)
        clear_optimiser(self.optimiser)
