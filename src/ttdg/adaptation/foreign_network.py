"""Networks from outside this project: what is known of their output, and the form in which methods receive them."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.abilities import Images, Logits
from ttdg.adaptation.network_output import Activation, LabelSets, OutputForm, read_as
from ttdg.adaptation.registry import METHODS, defaults
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
    ) -> "ForeignNetwork":
        """Join what the parts know of the output with what is given; raises `UserError` if they disagree."""
        parts, label_sets = parts or {}, LabelSets()
        if OUTPUT in parts:
            known = parts[OUTPUT].settings
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


def output_part(form: OutputForm) -> Part:
    """The form of an output as a part."""
    label_sets = [list(channels) for channels in form.label_sets]
    return Part({}, {"output": form.pick, "activation": form.activation, "label_sets": label_sets})


@dataclass(frozen=True)
class Conversions:
    """Converts images and answers between a user and the adapter of a method."""

    method: str
    source: nn.Module  # the user's network
    form: OutputForm = UNKNOWN
    by_label: bool = False  # the adapter answers with labels, and the user expects channels
    single: bool = False  # the user's images are float16, and the adapter's float32
    asks: bool = False  # the method depends on the activation, and nothing says it
    counted: list[int] = field(default_factory=list)  # output channels of the network, once they are counted

    def images(self, images: Images) -> Images:
        """The images that the adapter receives."""
        if images.ndim != 4 and not (images.ndim == 5 and METHODS[self.method].volumes):
            able = ", ".join(name for name, method in METHODS.items() if method.volumes)
            raise UserError(
                f"method {self.method!r} works on images (images, channels, height, width), not on a tensor of shape "
                f"{tuple(images.shape)}; give it the slices of a volume as images, or use a method that takes volumes "
                f"({able})"
            )
        if self.asks and len(images):
            self._ask(images)
        return images.float() if self.single else images

    def _ask(self, images: Images) -> None:
        """Raise `UserError` for three or more channels; two are read as background and one structure."""
        if not self.counted:
            self.counted.append(self.nothing(images[:1]).shape[1])
        if self.counted[0] > 2:
            raise UserError(
                f"nothing says whether the {self.counted[0]} output channels of {type(self.source).__name__} are "
                f"labels that exclude each other or independent structures, and method {self.method!r} depends on it; "
                'give activation="softmax" or activation="sigmoid"'
            )

    def answer(self, logits: Logits) -> Float[Tensor, "b _l *hw"]:
        """Logits of the user's channels, from those of labels; used if `by_label`."""
        return self.form.channel_logits(logits)

    @torch.no_grad()
    def alone(self, images: Images) -> Tensor:
        """The answers of the user's network, which is not adapted."""
        network = copy.deepcopy(self.source).eval()
        return self.form.logits(network(images.to(next(network.parameters()))))

    def nothing(self, images: Images) -> Tensor:
        """Zeros in the shape of the answers to the images."""
        one = self.alone(images.new_zeros(1, *images.shape[1:]))
        return torch.zeros(len(images), *one.shape[1:], device=images.device)


def prepared(
    model: Any, method: str, values: Mapping[str, Any], views: str
) -> tuple[nn.Module, Conversions, dict[str, Any]]:
    """A copy of the network as the method receives it, the conversions around it, and the method's options."""
    network, values = copy.deepcopy(model.network), dict(values)
    single = any(parameter.dtype == torch.float16 for parameter in network.parameters())
    if single:
        network = network.float()  # in float16, updates overflow or vanish
    if not isinstance(model, ForeignNetwork):
        form = OutputForm(activation=values.get("head", "softmax"))
        return network, Conversions(method, model.network, form, single=single), values
    form, has_head = model.form, "head" in defaults(method)
    said = values.get("head") or form.activation
    asks = said is None and (has_head or views != "plain" or "prior" in METHODS[method].parts)
    if has_head and said is not None:
        values.setdefault("head", said)
    by_label = said == "sigmoid" and "prior" in METHODS[method].parts
    network = network if hasattr(network, "decoded") else read_as(network, form, labels=by_label)
    form = OutputForm(form.pick, said, form.label_sets)
    return network, Conversions(method, model.network, form, by_label, single, asks), values
