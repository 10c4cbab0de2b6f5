"""Labelled source images of a user, as the fits of the parts expect them: bytes, label maps and a benchmark."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from ttdg.adaptation.own_network.output import LabelSets, OutputForm
from ttdg.adaptation.site_learning.image_memory import from_imagenet, recognise
from ttdg.data import Arrays, Benchmark, Exact, NetworkInput, Sources
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
    """Check the values of masks, and convert images and masks.

    Args:
        images: as the network receives them; with the masks, they passed `check_images`.
        masks: label maps (n h w); or 0 and 1 for each channel (n k h w), for a sigmoid head. Every label occurs.
        form: how the output of the network is read.
        channels: number of output channels of the network.
    """
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

    For one channel, label maps (n h w) of 0 and 1 are accepted too. For more channels they are not, because they cannot
    say which structures overlap.
    """
    if masks.ndim == 3 and channels == 1:
        return _label_maps(masks, 2), ((), (0,))
    if masks.ndim != 4 or masks.shape[1] != channels or not ((masks == 0) | (masks == 1)).all():
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
    """Label maps with the labels 0 to `labels` − 1, each of which occurs; only the background may be absent."""
    if masks.ndim != 3 or masks.is_floating_point() or int(masks.max()) >= labels or int(masks.min()) < 0:
        raise UserError(
            f"masks hold whole numbers from 0, the background, to {labels - 1}, in the shape (images, height, width), "
            f"not values up to {float(masks.max()):g} of {masks.dtype} in the shape {tuple(masks.shape)}; "
            f"{_remedy(masks, labels)}"
        )
    if absent := _absent([masks], labels):
        raise UserError(
            f"no mask holds label {absent[0]}, but the network has {labels} labels; give images that show every label, "
            "or correct the masks"
        )
    return masks.long()


def _remedy(masks: Shaped[Tensor, "n *_"], labels: int) -> str:
    """What to do about masks that are no label maps."""
    if masks.ndim == 4 and masks.shape[1] == 1:
        return "give masks[:, 0]"
    if masks.ndim == 4 and masks.shape[1] == labels and bool((masks.sum(1) == 1).all()):
        return "these have one channel for each label: give masks.argmax(1)"
    if masks.ndim == 3 and bool((masks == masks.round()).all()) and 0 <= masks.min() <= masks.max() < labels:
        return "give masks.long()"
    return "correct the masks or the activation"


def check_labels_occur(sources: Sources, labels: Sequence[str]) -> None:
    """Raise `UserError` if no mask of the source sites holds one of the labels; the background may be absent."""
    sites = (*sources.train.values(), *sources.held_out.values())
    masks = [site.masks for site in sites if site.masks is not None]
    if masks and (absent := _absent(masks, len(labels))):
        raise UserError(
            f"no mask of the source sites holds label {labels[absent[0]]!r}; give source sites that show every label"
        )


def _absent(masks: Iterable[Tensor], labels: int) -> list[int]:
    """The labels from 1 that no mask holds: nothing can be fitted to them, and empty answers would count as perfect."""
    masks = list(masks)
    return [label for label in range(1, labels) if not any(bool((part == label).any()) for part in masks)]


def check_images(images: Shaped[Tensor, "n *_"], masks: Shaped[Tensor, "m *_"]) -> None:
    """Raise `UserError` for images that no parts can be fitted on, or masks of another number or size."""
    if images.ndim != 4:
        raise UserError(
            f"parts are fitted on images (images, channels, height, width), not on a tensor of shape "
            f"{tuple(images.shape)}; give the slices of volumes as images, and a network of images"
        )
    if not images.is_floating_point():
        raise UserError(
            f"the images are {images.dtype}; convert them to floating-point numbers, normalised as the network expects"
        )
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
