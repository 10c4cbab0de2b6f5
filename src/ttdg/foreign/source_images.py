"""Labelled source images of a user, as the fits of the parts expect them: bytes, label maps and a benchmark."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from ttdg.adaptation.network_output import LabelSets, OutputForm
from ttdg.adaptation.site_learning.image_memory import from_imagenet, recognise
from ttdg.data import Arrays, Benchmark, Exact, NetworkInput
from ttdg.errors import UserError
from ttdg.types import Regions

HOLD_OUT = 5  # every fifth image is held out of the prior's fit, and the judge is fitted on it
MAX_LABELS = 16
FEWEST = 10  # images

Images = Float[Tensor, "n c h w"]


@dataclass(frozen=True)
class SourceImages:
    """Training and held-out images of one source, with what their labels mean."""

    train: Arrays
    held_out: Arrays
    benchmark: Benchmark
    form: OutputForm  # of the output of the network, with its label sets


def source_images(
    images: Images, masks: Shaped[Tensor, "m *_"], form: OutputForm, channels: int
) -> SourceImages:
    """Check images and masks, and convert them.

    Args:
        images: as the network receives them.
        masks: label maps (n h w); or 0 and 1 for each channel (n k h w), for a sigmoid head.
        form: how the output of the network is read.
        channels: number of output channels of the network.
    """
    _check(images, masks)
    if form.activation == "sigmoid":
        labels, label_sets = labels_of_channels(masks, channels)
        regions: Regions = {
            f"channel {k}": tuple(label for label, s in enumerate(label_sets) if k in s)
            for k in range(channels)
        }
    else:
        labels, label_sets = _label_maps(masks, channels), LabelSets()
        regions = {f"label {k}": (k,) for k in range(1, channels)}
    count = len(label_sets) or channels
    rule, pixels = network_input(images)
    names = ("background", *(f"label {k}" for k in range(1, count)))
    benchmark = Benchmark(
        "own network", names, Exact({k: k for k in range(count)}), regions, rule, max(images.shape[2:])
    )
    held_out = torch.arange(len(images)) % HOLD_OUT == HOLD_OUT - 1
    train, out = (
        Arrays(pixels[rows], labels[rows].to(torch.uint8), tuple(map(str, rows.nonzero()[:, 0].tolist())))
        for rows in (~held_out, held_out)
    )
    return SourceImages(train, out, benchmark, OutputForm(form.pick, form.activation, label_sets))


def network_input(images: Images) -> tuple[NetworkInput, UInt8[Tensor, "n 3 h w"]]:
    """Recognise how images were normalised, and return the rule with the images in bytes and three channels.

    A normalisation of each image by its own mean and variance, or minimum and maximum, and that of ImageNet are
    recognised. Any other one is taken for one range of values, that of all images.
    """
    colours = images.float().cpu().expand(-1, 3, -1, -1)
    name, low, high = recognise(colours), float(images.min()), float(images.max())
    if name == "minmax":
        rule, unit = NetworkInput(images.shape[1], "minmax"), colours
    elif name == "imagenet" and images.shape[1] == 3 and not (low >= 0 and high <= 1):
        rule, unit = NetworkInput(3, "imagenet"), from_imagenet(colours)
    elif name == "zscore":
        smallest, largest = colours.amin((1, 2, 3), keepdim=True), colours.amax((1, 2, 3), keepdim=True)
        rule, unit = NetworkInput(images.shape[1], "zscore"), (colours - smallest) / (largest - smallest)
    else:
        low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        rule = NetworkInput(images.shape[1], None, low, high)
        unit = (colours - low) / max(high - low, 1e-6)
    return rule, unit.mul(255).round().clamp(0, 255).to(torch.uint8)


def labels_of_channels(
    masks: Shaped[Tensor, "n *_"], channels: int
) -> tuple[Int[Tensor, "n h w"], LabelSets]:
    """Labels that exclude each other, and the channels of each, from masks of independent channels.

    Label maps (n h w) are accepted too: label k is channel k − 1 alone.
    """
    if masks.ndim == 3:
        labels = _label_maps(masks, channels + 1)
        return labels, ((), *((k,) for k in range(channels)))
    if masks.shape[1] != channels or not ((masks == 0) | (masks == 1)).all():
        raise UserError(
            f"the network has {channels} independent output channels, so masks hold 0 and 1 for each of them, in the "
            f"shape (images, {channels}, height, width), not {tuple(masks.shape)}; correct the masks or the activation"
        )
    codes = (masks.long() << torch.arange(channels, device=masks.device)[:, None, None]).sum(1)
    found = {int(code) for code in codes.unique()} | {0}
    if len(found) > MAX_LABELS:
        raise UserError(
            f"the structures of the masks overlap in {len(found)} ways, and at most {MAX_LABELS} are supported; "
            "correct the masks, or fit to fewer images"
        )
    sets = sorted(
        (tuple(k for k in range(channels) if code >> k & 1) for code in found), key=lambda s: (len(s), s)
    )
    absent = sorted(set(range(channels)) - {k for s in sets for k in s})
    if absent:
        raise UserError(
            f"no mask holds the structure of channel {absent[0]}; give images that show every structure"
        )
    labels = torch.zeros_like(codes)
    for label, channels_on in enumerate(sets):
        labels[codes == sum(1 << k for k in channels_on)] = label
    return labels, tuple(sets)


def _label_maps(masks: Shaped[Tensor, "n *_"], labels: int) -> Int[Tensor, "n h w"]:
    """Label maps with the labels 0 to `labels` − 1."""
    if masks.ndim != 3 or masks.is_floating_point() or int(masks.max()) >= labels or int(masks.min()) < 0:
        raise UserError(
            f"masks hold whole numbers from 0, the background, to {labels - 1}, in the shape (images, height, width), "
            f"not values up to {float(masks.max()):g} in the shape {tuple(masks.shape)}; correct the masks or "
            "the activation"
        )
    return masks.long()


def _check(images: Images, masks: Tensor) -> None:
    if images.shape[1] not in (1, 3):
        raise UserError(
            f"these images have {images.shape[1]} channels, but other hospitals are simulated for grey images (1 "
            "channel) and colour images (3 channels); fit to one of these, or use a method without parts"
        )
    if len(masks) != len(images) or masks.shape[-2:] != images.shape[-2:]:
        raise UserError(
            f"masks of shape {tuple(masks.shape)} do not belong to images of shape {tuple(images.shape)}; give one "
            "mask of the same height and width for each image"
        )
    if len(images) < FEWEST or not images.isfinite().all():
        raise UserError(
            f"parts are fitted on at least {FEWEST} images with finite values; give more images, or correct them"
        )
