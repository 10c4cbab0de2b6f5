"""The two forms of ResNet-50, v1 and v1.5, and which of them a file of weights was trained with.

They differ in the convolution that has the stride of a stage: the first 1×1 convolution (v1) or the 3×3 convolution
(v1.5). Names and shapes of the weights are the same, so that a file does not say which form it needs. Its BatchNorm
statistics do: they were collected with one of the two forms, and with that form the statistics of a batch of images are
closer to them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.errors import UserError

FORMS = {"v1": (2, 1), "v1.5": (1, 2)}  # strides of the first and of the second convolution of a stage
STAGES = ("layer2", "layer3", "layer4")  # those with a stride
CLEARER = 0.97  # of the misfit: the other form fits better if its misfit is below this share
IMAGENET_SIZE = 224  # sides of the images on which the statistics of ImageNet weights were collected
LARGEST = 25.0  # squared deviation of one channel, in variances, that still counts more than a smaller one


def set_strides(encoder: nn.Module, form: str, name: str) -> None:
    """Give the stages of the encoder called `name` the strides of a form; only resnet50 has the form v1."""
    if name != "resnet50":
        if form == "v1.5":
            return
        raise UserError(
            f"strides 'v1' are supported for the encoder resnet50 only, not for {name}; use strides 'v1.5'"
        )
    first, second = FORMS[form]
    for stage in STAGES:
        block = getattr(encoder, stage)[0]
        block.conv1.stride, block.conv2.stride = (first, first), (second, second)


@torch.no_grad()
def better_strides(encoder: nn.Module, images: Float[Tensor, "b c h w"], form: str) -> str | None:
    """Return the other form if the statistics of a ResNet-50 fit it better than `form`, else None.

    Args:
        encoder: a ResNet-50 with the strides `form`. It is unchanged afterwards.
        images: some normalised images, whose sides are multiples of 32.
        form: "v1" or "v1.5".
    """
    (other,) = FORMS.keys() - {form}
    mine = _misfit(encoder, images)
    with _strides(encoder, other, form):
        better = _misfit(encoder, images) < CLEARER * mine
    return other if better else None


def enlarged(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c _h _w"]:
    """Enlarge images whose shorter side is below that of ImageNet's; statistics of small images fit neither form."""
    factor = IMAGENET_SIZE / min(images.shape[2:])
    return nn.functional.interpolate(images, scale_factor=factor, mode="bilinear") if factor > 1 else images


@contextmanager
def _strides(encoder: nn.Module, form: str, after: str) -> Iterator[None]:
    set_strides(encoder, form, "resnet50")
    try:
        yield
    finally:
        set_strides(encoder, after, "resnet50")


def _misfit(encoder: nn.Module, images: Float[Tensor, "b c h w"]) -> float:
    """Distance of the batch statistics from the running statistics, averaged over the layers of `STAGES`."""
    found: list[Tensor] = []

    def compare(layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(layer, nn.BatchNorm2d)
        maps, mean, variance = inputs[0], layer.running_mean, layer.running_var
        assert mean is not None
        assert variance is not None
        ratio = maps.var((0, 2, 3), correction=0) / variance
        shift = (maps.mean((0, 2, 3)) - mean).square() / variance
        found.append(shift.clamp(max=LARGEST).mean() + ratio.clamp(min=1e-6).log().abs().mean())

    training = encoder.training
    with ExitStack() as stack:
        for stage in STAGES:
            for layer in getattr(encoder, stage).modules():
                if isinstance(layer, nn.BatchNorm2d):
                    stack.callback(layer.register_forward_hook(compare).remove)
        encoder.eval()(images)
    encoder.train(training)
    return float(torch.stack(found).mean())
