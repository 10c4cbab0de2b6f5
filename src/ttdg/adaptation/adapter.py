"""The declaration of a method, and two base classes. The interfaces of `abilities` can be imported from here too."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ttdg.adaptation.abilities import (
    Adapter,
    Assessment,
    Counting,
    Exportable,
    FrozenPredictor,
    Images,
    Logits,
    Progress,
    Remarking,
    Resumable,
    SelfAssessing,
    SiteLearner,
)
from ttdg.adaptation.options import Option
from ttdg.errors import UserError
from ttdg.networks import batchnorm
from ttdg.networks.capture import CaptureGuard, make_capturable, reset_optimiser
from ttdg.networks.cuda_graph import GraphRunner
from ttdg.networks.weights import network_tensors

__all__ = [
    "Access", "Adapter", "Assessment", "Counting", "Exportable", "Fixed", "FrozenPredictor", "GradientAdapter",
    "Images", "Logits", "Method", "Progress", "Remarking", "Resumable", "SelfAssessing", "SiteLearner",
]  # fmt: skip

Access = Literal["source-free", "source statistics", "source images", "source labels"]


@dataclass(frozen=True)
class Method:
    """Declaration of a method. The contract test checks every field against the method's behaviour."""

    build: Callable[..., Adapter]  # takes the network, then `parts`, then options by keyword
    summary: str  # what the method does, in one line
    adapts: str  # what changes in the network: "nothing", "BatchNorm γ, β", …
    norm: str  # BatchNorm statistics: EVAL, BATCH, MIX(option or number), …; see MODES in the contract test
    memory: bool  # True if a batch influences the predictions of later batches
    forwards: int  # forward passes for each batch with default options (six views count as six), at most
    backwards: int  # backward passes for each batch; for a network in two halves, those of the half with more
    predict: Literal["before", "after"]  # predictions come from before or after the update
    access: Access  # what of the source it needs besides the network, to adapt or to fit its parts
    paper: str
    origin: str  # where the default hyper-parameters come from
    options: Mapping[str, Option] = field(default_factory=dict)  # one entry for each keyword of `build`
    # required of the network: "BatchNorm", "encode/decode", "dropout", "batch ≥ 2", "segmentation"
    needs: tuple[str, ...] = ()
    # required parts, fitted at source time, in the order of the arguments of `build`
    parts: tuple[str, ...] = ()
    post_hoc: bool = (
        False  # the paper trains the parts together with the network; here they are fitted afterwards
    )
    volumes: bool = False  # it also adapts networks of volumes (b c d h w)
    single_precision: bool = False  # it works in float32 alone, also with a network in float64
    flips: bool = False  # it predicts mirror images itself, so that the views `flips` add nothing
    reset: Literal["episodic", "online", "continual"] = "online"  # the reset policy of the publication
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # values to tune; default: lr × steps
    folder_grid: Mapping[str, tuple[Any, ...]] = field(
        default_factory=dict
    )  # the same for the folder stream; default: as `grid`
    published: Mapping[str, Any] | None = field(
        default_factory=dict
    )  # published options that differ; None: none are
    published_for: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # the same, for single benchmarks

    @property
    def reconstructed(self) -> bool:
        """True if the authors published neither code nor all details, so that parts are guesses of this project."""
        return self.paper.startswith("reconstructed")


class Fixed(Adapter):
    """An adapter without updates: the network predicts in the BatchNorm mode that it was given."""

    def __init__(self, network: nn.Module, mode: batchnorm.Mode = batchnorm.EVAL) -> None:
        self.network = network.eval()
        if mode != batchnorm.EVAL or batchnorm.has_layers(network):  # EVAL needs no BatchNorm layer
            batchnorm.use(network, mode)
        self._replay = GraphRunner(CaptureGuard(network))

    @torch.no_grad()
    def __call__(self, images: Images) -> Logits:
        """Return the network's logits."""
        return self._replay(self.network, images)

    def reset(self) -> None:
        """Do nothing: the adapter has no state."""


class GradientAdapter(Adapter):
    """Updates chosen parameters by one optimiser, with `steps` steps on each batch.

    A batch whose loss is not finite updates nothing. Subclasses with another update override `__call__` and keep the
    parameters, the optimiser and `reset`. All state is changed in place, so that a whole call can be recorded as a CUDA
    graph and replayed.

    Args:
        network: adapted in place; parameters outside `parameters` are frozen.
        objective: maps logits to the loss.
        parameters: the parameters to update. They may include tensors outside the network, such as a prompt.
        lr: learning rate.
        steps: updates on each batch.
        predict: "before" returns the logits of the last forward pass before its update (TENT, SAR); "after" costs one
            more forward pass.
        optimiser: called with the parameters and `lr`.
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
                "and β); use method 'norm', which adapts no parameters, or a method that adapts all weights"
            )
        self.loss = torch.tensor(torch.nan)  # of the last step
        self._fused = all(p.is_cuda for p in self.parameters)  # one kernel instead of some hundred small ones
        self.optimiser = optimiser(self.parameters, lr=lr, **({"fused": True} if self._fused else {}))
        self._replay = GraphRunner(
            CaptureGuard(network, make_capturable(self.optimiser) if self._fused else False)
        )
        self._source = {name: value.clone() for name, value in network_tensors(network).items()}
        names = {id(parameter): name for name, parameter in network.named_parameters()}
        self._start = [  # parameters outside the network restart from their present values
            self._source[names[id(p)]] if id(p) in names else p.detach().clone() for p in self.parameters
        ]
        self.reset()

    def __call__(self, images: Images) -> Logits:
        """Update the parameters on the batch and return its logits."""
        logits, self.loss = self._replay(self._adapt, images)
        return logits

    def _adapt(self, images: Images) -> tuple[Logits, Tensor]:
        """Return the logits, and the loss of the last step."""
        self.optimiser.zero_grad(set_to_none=True)  # a failed recording may have left gradients
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
        if self._fused:  # the optimiser skips the step on the device, and the host does not wait
            self.optimiser.found_inf = (~finite).float()  # type: ignore[attr-defined]
        elif not finite:
            return
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Gradients of `loss` with respect to the adapted parameters; their `grad` fields stay empty."""
        return list(torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True))

    def apply(self, gradients: Sequence[Tensor], lr: float | None = None) -> None:
        """Take one optimiser step with these gradients, at learning rate `lr` if given."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr if lr is None else lr
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    @torch.no_grad()
    def restart(self) -> None:
        """Restore the adapted parameters and a fresh optimiser, as episodic methods do before every batch."""
        torch._foreach_copy_(self.parameters, self._start)
        reset_optimiser(self.optimiser)

    @torch.no_grad()
    def reset(self) -> None:
        """Restore all weights and buffers of the network, the adapted parameters and a fresh optimiser."""
        for name, value in network_tensors(self.network).items():
            value.copy_(self._source[name])
        torch._foreach_copy_(self.parameters, self._start)
        reset_optimiser(self.optimiser)
