"""The first pass of a user's network: errors that say what to do, before anything is adapted, fitted or exported."""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ttdg.adaptation.own_network.output import Activation, OutputForm
from ttdg.errors import UserError

REMEDY = "give images of the channels, and of the height and width, that the network takes"
ENDS = (nn.Sigmoid, nn.Softmax, nn.Softmax2d)  # modules whose results are probabilities
SUM_ERROR = 1e-3  # of the sum of probabilities over the channels
DECIDED = (0.05, 0.5)  # probabilities of a sigmoid are below the first and above the second at some pixels
LONGEST = 200  # characters of a network's error message that are repeated


def check_tensor(given: object, name: str) -> None:
    """Raise `UserError` for arrays and lists in place of tensors."""
    if not isinstance(given, Tensor):
        tensors = isinstance(given, list | tuple) and any(isinstance(item, Tensor) for item in given)
        maker = "stack" if tensors else "as_tensor"
        raise UserError(
            f"give torch tensors as {name}, not a value of type {type(given).__name__}; torch.{maker}({name}) makes one"
        )


def first_logits(
    network: nn.Module, images: Shaped[Tensor, "b c *hw"], form: OutputForm, remedy: str = REMEDY
) -> Float[Tensor, "b l *_"]:
    """The logits that the form picks; raises `UserError` if the network fails, or if its last module is a sigmoid.

    Arguments are those of `first_output`.
    """
    ends: list[tuple[str, Any]] = []
    hooks = [
        module.register_forward_hook(lambda module, _, result: ends.append((type(module).__name__, result)))
        for module in network.modules()
        if isinstance(module, ENDS)
    ]
    try:
        logits = form.logits(first_output(network, images, remedy))
    finally:
        for hook in hooks:
            hook.remove()
    if logits.ndim < 2:
        raise UserError(
            f"the network returns values of shape {tuple(logits.shape)}, not logits (images, channels, height, width)"
        )
    if end := next((name for name, result in ends if result is logits), None):
        raise UserError(
            f"the network ends with {end}, so its outputs are probabilities, but methods expect logits; return the "
            f"values before {end}"
        )
    return logits


@torch.no_grad()
def first_output(network: nn.Module, images: Shaped[Tensor, "b c *hw"], remedy: str = REMEDY) -> Any:
    """The output of the network; an error that it raises becomes a `UserError`.

    Args:
        network: the network in eval mode.
        images: a few images.
        remedy: what to do if the network fails, unless the device or dtype of the images is wrong.
    """
    try:
        return network(images)
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"the network fails on images of shape {tuple(images.shape[1:])} ({shortened(error)}); "
            f"{_placed_elsewhere(network, images) or remedy}"
        ) from error


def shortened(error: Exception) -> str:
    """The message of an error in one line, cut to `LONGEST` characters; its type if it has no message."""
    message = " ".join((str(error) or type(error).__name__).split())
    return message if len(message) <= LONGEST else f"{message[:LONGEST]}…"


def _placed_elsewhere(network: nn.Module, images: Tensor) -> str:
    """What to do if the network has another device or dtype than the images; empty if it has not."""
    weights = next(network.parameters(), images)
    if images.device != weights.device:
        return f"the images are on {images.device} and the network is on {weights.device}; move one of them"
    if images.dtype != weights.dtype:
        return f"the images are {images.dtype} and the network is {weights.dtype}; convert one of them"
    return ""


def check_shape(logits: Tensor, images: Shaped[Tensor, "b c *hw"]) -> None:
    """Raise `UserError` if the logits have another height and width than the images, or no axis of channels."""
    if logits.shape[2:] != images.shape[2:]:
        size = ", ".join(map(str, images.shape[2:]))
        raise UserError(
            f"for images of shape {tuple(images.shape[1:])} the network returns logits of shape "
            f"{tuple(logits.shape[1:])}; logits must have the height and width of the images; let the network enlarge "
            f"them to (channels, {size}), or give images of a size that it keeps"
        )


def check_logits(logits: Float[Tensor, "b l *hw"], activation: Activation | None) -> None:
    """Raise `UserError` if all values are probabilities already.

    Those of a softmax sum to 1. Logits of a sigmoid could lie between 0 and 1 too, but then the structure is at least
    as probable as not at every pixel, and nowhere beyond doubt: only untrained networks say so.
    """
    activation = activation or ("sigmoid" if logits.shape[1] == 1 else "softmax")
    low, high = float(logits.min()), float(logits.max())
    if not 0 <= low < high <= 1 + SUM_ERROR:
        return
    what = f"all are between {low:.2g} and {high:.2g}"
    if activation == "sigmoid":
        if low > DECIDED[0] or high < DECIDED[1]:
            return
    elif not ((logits.float().sum(1) - 1).abs() < SUM_ERROR).all():
        return
    else:
        what += ", and sum to 1 over the channels"
    raise UserError(
        f"the outputs of the network look like probabilities ({what}), but methods expect logits; return the values "
        f"before the {activation}"
    )
