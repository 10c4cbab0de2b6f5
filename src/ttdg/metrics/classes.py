"""Accuracy of classifications."""

from jaxtyping import Float, Int
from torch import Tensor


def image_classes(logits: Float[Tensor, "b c h w"]) -> Int[Tensor, " b"]:
    """The class of each image: the one with the largest mean probability over the pixels.

    A `Classifier` gives all pixels of an image the same logits; a method may change single pixels.
    """
    return logits.float().softmax(1).mean((2, 3)).argmax(1)


def accuracy(logits: Float[Tensor, "b c h w"], labels: Int[Tensor, "b h w"]) -> Float[Tensor, " b"]:
    """1 for each image whose class is right, else 0. The label map of an image holds its class everywhere."""
    return (image_classes(logits) == labels[:, 0, 0]).double()
