"""How the output of a user's network is read when parts are fitted to it."""

from dataclasses import replace

from jaxtyping import Shaped
from torch import Tensor, nn

from ttdg.adaptation.own_network.first_pass import REMEDY, check_logits, check_shape, first_logits
from ttdg.adaptation.own_network.output import OutputForm
from ttdg.errors import UserError

LOOKED_AT = 4  # images whose outputs are looked at


def completed_form(
    network: nn.Module, images: Shaped[Tensor, "b c h w"], form: OutputForm, remedy: str = REMEDY
) -> tuple[OutputForm, int]:
    """The form with its activation, and the number of output channels; raises `UserError` if nothing can be fitted.

    Args:
        network: the network in eval mode.
        images: images as it receives them; a few are passed through it.
        form: what is known of the output.
        remedy: what to do if the network fails on the images, as the end of an error message.
    """
    images = images[:LOOKED_AT].to(next(network.parameters()))
    logits = first_logits(network, images, form, remedy)
    check_shape(logits, images)
    channels = logits.shape[1]
    if form.activation is None and channels > 1:
        raise UserError(
            f"the network has {channels} output channels, and nothing says whether they are labels that exclude "
            'each other or independent structures; give activation="softmax" or activation="sigmoid"'
        )
    if form.activation == "softmax" and channels == 1:
        raise UserError(
            'this network has one output channel, for which softmax is always 1; use activation="sigmoid"'
        )
    form = replace(form, activation=form.activation or "sigmoid")
    if not logits.isfinite().all():
        raise UserError(
            "the network returns values that are not finite; give images with finite values, or correct the weights"
        )
    check_logits(logits, form.activation)
    return form, channels
