"""How the output of a network is read: which of several tensors it is, and what its channels mean.

Methods that match labels to a universe work with labels that exclude each other, and a softmax. For a network whose
channels are independent (sigmoid), each label is a set of channels that are on together, such as {} for background,
{disc} for the rim and {disc, cup} for the cup. With logits z of channels, the label S has the logit Σ_{k∈S} z_k: the
softmax is the distribution of independent channels, given that the channels that are on are one of the sets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.errors import UserError
from ttdg.pickling import LEAST, remade

Activation = Literal["softmax", "sigmoid"]
LabelSets = tuple[tuple[int, ...], ...]  # channels that are on for each label


@dataclass(frozen=True)
class OutputForm:
    """How the output of a network is read. The default reads a tensor of logits and says nothing of its channels."""

    pick: str | int | None = None  # key of a dict, or position in a tuple
    activation: Activation | None = None
    label_sets: LabelSets = ()  # with "sigmoid": the labels, if they are known

    def __post_init__(self) -> None:
        if self.activation not in (None, *get_args(Activation)):
            raise UserError(f"the activation must be 'softmax' or 'sigmoid', not {self.activation!r}")

    def logits(self, output: Any) -> Tensor:
        """The tensor of logits in the output of a network."""
        try:
            picked = output if self.pick is None else output[self.pick]
        except (KeyError, IndexError, TypeError):
            raise UserError(f"{_described(output)} and has no output {self.pick!r}; {SAY}") from None
        if not isinstance(picked, Tensor):
            raise UserError(f"{_described(picked)}, not a tensor of logits; {SAY}")
        return picked

    def label_logits(self, logits: Float[Tensor, "b k *hw"]) -> Float[Tensor, "b l *hw"]:
        """Logits of labels that exclude each other, from those of independent channels."""
        if logits.shape[1] <= max((k for channels in self.label_sets for k in channels), default=-1):
            raise UserError(
                f"the network has {logits.shape[1]} output channels, and the parts were fitted to a network with more; "
                "fit them to this network"
            )
        none = torch.zeros_like(logits[:, 0])
        sums = [reduce(torch.add, [logits[:, k] for k in s]) if s else none for s in self.label_sets]
        return torch.stack(sums, 1)

    def channel_logits(self, logits: Float[Tensor, "b l *hw"]) -> Float[Tensor, "b k *hw"]:
        """Logits of the channels, from those of the labels: a channel is as probable as all labels with it together."""
        P = logits.softmax(1)
        channels = 1 + max(k for s in self.label_sets for k in s)
        sums = [
            reduce(torch.add, [P[:, label] for label, s in enumerate(self.label_sets) if k in s])
            for k in range(channels)
        ]
        return torch.stack(sums, 1).logit(eps=1e-6)


SAY = "say which output holds the logits (`output`): the key of a dict, or the position in a tuple"


def _described(output: Any) -> str:
    if isinstance(output, Mapping):
        return f"the network returns a dict with the keys {', '.join(map(repr, output))}"
    if isinstance(output, Sequence):
        return f"the network returns a {type(output).__name__} of {len(output)}"
    return f"the network returns a {type(output).__name__}"


def read_as(network: nn.Module, form: OutputForm, *, labels: bool) -> nn.Module:
    """Let a network return the logits that the form picks, in place; with `labels`, those of the label sets.

    The names of its modules, parameters and buffers do not change.
    """
    own_forward = isinstance(network, torch.fx.GraphModule) or "forward" in vars(network)
    if own_forward and (form.pick is not None or labels):
        raise UserError(
            f"the `forward` of this {type(network).__name__} was made for one object, so its output cannot be picked "
            "or converted; give a network whose class defines `forward`, for example one that holds this network"
        )
    if not own_forward and not isinstance(network, torch.jit.ScriptModule):
        network.__class__ = _reading(type(network))
        network.reading_form, network.reads_labels = form, labels  # type: ignore[assignment]
    return network


class _Reading:
    """Mixin for a network class whose `forward` returns one tensor of logits."""

    reading_form: OutputForm
    reads_labels: bool

    def forward(self, images: Any) -> Tensor:  # named, because `torch.export` asks for the names of inputs
        logits = self.reading_form.logits(super().forward(images))  # type: ignore[misc]
        return self.reading_form.label_logits(logits) if self.reads_labels else logits

    def __reduce_ex__(self, protocol: Any) -> Any:
        return remade(super().__reduce_ex__(max(LEAST, protocol)), _reading, type(self).__bases__[1])


def in_channels(network: nn.Module) -> nn.Module:
    """The network; or around a network that returns logits of labels, one that returns those of the channels."""
    return _InChannels(network) if getattr(network, "reads_labels", False) else network


class _InChannels(nn.Module):
    """Returns logits of channels from a network that returns logits of labels."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Any) -> Tensor:
        return self.network.reading_form.channel_logits(self.network(images))


_classes: dict[type, type] = {}


def _reading(base: type) -> type:
    """The class of a network with `_Reading`, created once so that copies of networks share it."""
    if issubclass(base, _Reading):
        return base
    if base not in _classes:
        _classes[base] = type(base.__name__, (_Reading, base), {"__module__": base.__module__})
    return _classes[base]
