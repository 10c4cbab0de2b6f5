"""A network from outside this project, with parts that were fitted to its weights, and the form of its output."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from ttdg.adaptation.own_network.output import Activation, LabelSets, OutputForm
from ttdg.checkpoints import content_hash
from ttdg.errors import UserError
from ttdg.types import Part

UNKNOWN = OutputForm()
OUTPUT = "output"  # name of the part that holds the form of the network's output


@dataclass(frozen=True)
class ForeignNetwork:
    """A network with parts that were fitted to it, and the form of its output."""

    network: nn.Module
    parts: Mapping[str, Part] = field(default_factory=dict)
    form: OutputForm = UNKNOWN

    @classmethod
    def of(
        cls,
        network: nn.Module,
        parts: Mapping[str, Part] | None = None,
        output: str | int | None = None,
        activation: Activation | None = None,
        weights: str | None = None,
    ) -> "ForeignNetwork":
        """Join what the parts know of the output with what is given.

        Raises `UserError` if they disagree, or if the parts were fitted to other weights. `weights` is the hash of the
        weights of the network, if it is known already.
        """
        network, parts, label_sets = unwrapped(network), parts or {}, LabelSets()
        if not isinstance(parts, Mapping):
            raise UserError(
                f"give all that `ttdg.fit` returned as parts, or the folder to which it was saved, not a value of type "
                f"{type(parts).__name__}"
            )
        if OUTPUT in parts:
            known = parts[OUTPUT].settings
            fitted = known.get("weights")  # older parts do not know it
            if fitted is not None and fitted != (weights or weights_hash(network)):
                raise UserError(
                    "the parts were fitted to other weights than those of this network, or in another precision; "
                    "load the weights that they were fitted to, or fit the parts of this network with `ttdg.fit`"
                )
            for name, given in (("output", output), ("activation", activation)):
                if given is not None and given != known[name]:
                    raise UserError(
                        f"the parts were fitted with {name} {known[name]!r}, not {given!r}; fit the parts again, or "
                        "leave this argument out"
                    )
            output, activation = known["output"], known["activation"]
            label_sets = tuple(tuple(channels) for channels in known["label_sets"])
        elif hasattr(network, "decoded"):  # the networks of this project
            activation = activation or "softmax"
        return cls(network, parts, OutputForm(output, activation, label_sets))


def output_part(form: OutputForm, weights: str) -> Part:
    """The form of an output as a part, with the hash of the weights that all parts were fitted to."""
    label_sets = [list(channels) for channels in form.label_sets]
    settings = {"output": form.pick, "activation": form.activation, "label_sets": label_sets}
    return Part({}, {**settings, "weights": weights})


def unwrapped(network: nn.Module) -> nn.Module:
    """The network inside `torch.compile` or `torch.nn.DataParallel`, whose modules have names of their own."""
    inner = getattr(network, "_orig_mod", network)
    return inner.module if isinstance(inner, nn.DataParallel) else inner


def copied(network: nn.Module) -> nn.Module:
    """A copy of a network; raises `UserError` if the network keeps tensors that cannot be copied."""
    try:
        return copy.deepcopy(network)
    except RuntimeError as error:
        if "deepcopy" not in str(error):
            raise
        raise UserError(
            f"{type(network).__name__} keeps a tensor with the gradients of an earlier pass, so it cannot be copied; "
            "run it on some images inside `torch.no_grad()` first"
        ) from error


def weights_hash(network: nn.Module) -> str:
    """Hash of the parameters and buffers of a network."""
    network = unwrapped(network)
    return content_hash({n: value for n, value in network.state_dict().items() if isinstance(value, Tensor)})
