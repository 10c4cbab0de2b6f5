"""Between a user and the adapter of a method: the network that it receives, the images, and the answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.abilities import Images, Logits
from ttdg.adaptation.inference_mode import normal_tensor
from ttdg.adaptation.own_network.first_pass import check_logits, check_shape, check_tensor, first_logits
from ttdg.adaptation.own_network.foreign import UNKNOWN, ForeignNetwork, copied
from ttdg.adaptation.own_network.output import OutputForm, read_as
from ttdg.adaptation.registry import METHODS, defaults
from ttdg.errors import UserError


@dataclass(frozen=True)
class Conversions:
    """Converts images and answers between a user and the adapter of a method."""

    method: str
    source: nn.Module  # the network in eval mode; a copy of a user's, so that it may be changed meanwhile
    form: OutputForm = UNKNOWN
    by_label: bool = False  # the adapter answers with labels, and the user expects channels
    single: bool = False  # the network of the user has another precision, and the adapter works in float32
    asks: bool = False  # the method depends on the activation, and nothing says it
    looks: bool = False  # the network is a user's, and its first pass is looked at
    counted: list[int] = field(default_factory=list)  # output channels of the network, once they are counted

    def images(self, images: Images) -> Images:
        """The images that the adapter receives."""
        check_tensor(images, "images")
        if images.ndim != 4 and not (images.ndim == 5 and METHODS[self.method].volumes):
            able = ", ".join(name for name, method in METHODS.items() if method.volumes)
            remedy = (
                "give one image as images[None]"
                if images.ndim == 3
                else f"give it the slices of a volume as images, or use a method that takes volumes ({able})"
            )
            raise UserError(
                f"method {self.method!r} works on images (images, channels, height, width), not on a tensor of shape "
                f"{tuple(images.shape)}; {remedy}"
            )
        images = normal_tensor(images.float() if self.single else images).detach()
        if self.looks and len(images):
            self._look(images[:1])
        return images

    def _look(self, images: Images) -> None:
        """Raise `UserError` if the network fails on an image, if it returns no logits, or if these can be misread.

        Without an activation, two channels are read as background and one structure.
        """
        if not self.counted:
            network = copied(self.source).float() if self.single else self.source
            given = images.clone()
            logits = first_logits(network, given, self.form)
            if not torch.allclose(given, images, rtol=0, atol=0, equal_nan=True):
                raise UserError(
                    f"{type(self.source).__name__} changes the images that it receives, so a second pass would see "
                    "others; let its forward work on a copy (images = images.clone())"
                )
            if logits.ndim != 2:  # a classification has no height and width
                check_shape(logits, images)
            check_logits(logits, self.form.activation)
            self.counted.append(logits.shape[1])
        if self.asks and self.counted[0] > 2:
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
        return self.form.logits(self.source(images.to(next(self.source.parameters(), images))))

    def nothing(self, images: Images) -> Tensor:
        """Zeros in the shape of the answers to the images."""
        one = self.alone(images.new_zeros(1, *images.shape[1:]))
        return torch.zeros(len(images), *one.shape[1:], device=images.device)


def prepared(
    model: Any, method: str, values: Mapping[str, Any], views: str
) -> tuple[nn.Module, Conversions, dict[str, Any]]:
    """A copy of the network as the method receives it, the conversions around it, and the method's options."""
    network, values = copied(model.network), dict(values)
    # in half precision, updates overflow or vanish
    others = (torch.float16, torch.bfloat16, *([torch.float64] if METHODS[method].single_precision else []))
    single = any(parameter.dtype in others for parameter in network.parameters())
    if single:
        network = network.float()
    if not isinstance(model, ForeignNetwork):
        form = OutputForm(activation=values.get("head", "softmax"))
        training = any(module.training for module in model.network.modules())
        source = copied(model.network).eval() if training else model.network
        return network, Conversions(method, source, form, single=single), values
    form, has_head = model.form, "head" in defaults(method)
    source = copied(model.network).eval()
    said = values.get("head") or form.activation
    asks = said is None and (has_head or views != "plain" or "prior" in METHODS[method].parts)
    if has_head and said is not None:
        values.setdefault("head", said)
    by_label = said == "sigmoid" and "prior" in METHODS[method].parts
    network = network if hasattr(network, "decoded") else read_as(network, form, labels=by_label)
    form = OutputForm(form.pick, said, form.label_sets)
    return network, Conversions(method, source, form, by_label, single, asks, looks=True), values
