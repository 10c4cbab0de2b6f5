"""Figures that explain a model: Grad-CAM of the last encoder stage, and matched nodes of two images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.matching import round_matching
from ttdg.networks import feature_maps
from ttdg.prior import GraphPrior
from ttdg.report.figures.plots import new_figure, png_bytes


def last_stage(network: nn.Module, images: Float[Tensor, "b c h w"]) -> str:
    """Return the name of the module whose output is the encoder's deepest feature map."""
    outputs: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _m, _i, out, name=name: outputs.__setitem__(name, out))
        for name, module in network.named_modules()
        if name
    ]
    try:
        with torch.no_grad():
            deepest = network.encode(images)[-1]  # type: ignore[operator]
    finally:
        for hook in hooks:
            hook.remove()
    return min((name for name, out in outputs.items() if out is deepest), key=len)


def grad_cam(network: nn.Module, images: Float[Tensor, "b 3 h w"], label: int) -> Float[np.ndarray, "b h w"]:
    """Return the Grad-CAM of a label in the deepest feature map, scaled to [0, 1] for each image.

    The explained score is the sum of the label's logits over the pixels that are predicted as the label, as usual for
    segmentation; over all pixels where there are none. The sum over all pixels would explain the background.
    """
    stage, outputs = dict(network.named_modules())[last_stage(network, images[:1])], list[Tensor]()
    hook = stage.register_forward_hook(lambda _m, _i, out: outputs.append(out))
    try:
        with torch.enable_grad():  # gradients flow through the image, because adapters freeze most parameters
            logits = network(images.clone().requires_grad_())
            inside = (logits.argmax(1) == label).float()
            inside = torch.where(inside.amax((1, 2), keepdim=True) > 0, inside, 1.0)
            (gradient,) = torch.autograd.grad((logits[:, label] * inside).sum(), outputs[-1])
    finally:
        hook.remove()
    weights = gradient.mean((2, 3), keepdim=True)
    maps = (weights * outputs[-1].detach()).sum(1, keepdim=True).relu()
    maps = F.interpolate(maps, images.shape[2:], mode="bilinear")[:, 0]
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return ((maps - low) / (high - low).clamp(min=1e-12)).cpu().numpy()


@dataclass(frozen=True)
class MatchedPairs:
    """Matched nodes of two images: coordinates (y, x) in [0, 1], and whether both nodes are in the same tissue."""

    first: Float[np.ndarray, "k 2"]
    second: Float[np.ndarray, "k 2"]
    agree: np.ndarray

    @property
    def share(self) -> float:
        """Fraction of pairs in the same tissue; NaN without pairs."""
        return float(self.agree.mean()) if len(self.agree) else float("nan")


@torch.no_grad()
def matched_pairs(
    network: nn.Module, prior: GraphPrior, images: Float[Tensor, "2 3 h w"], with_prior: bool = True
) -> MatchedPairs:
    """Match the nodes of two images, through the universe or by the network's features alone.

    Tissues are predicted by the network. They decide which pairs agree and do not guide the matching: with the
    prior, a node may be matched to any universe point.
    """
    logits, maps = feature_maps(network, images, prior.spec.levels)
    nodes = prior.nodes(prior.project(maps, images.shape[2:]), logits.argmax(1))
    if with_prior:
        U = round_matching(prior.scores_of_all(nodes), nodes.mask)
        matched = U[0] @ U[1].mT
    else:
        raw = features_at(maps, nodes.coordinates)
        alike = torch.where(nodes.mask[1], raw[0] @ raw[1].mT, -1e30)
        matched = round_matching(alike[None], nodes.mask[:1])[0]
    i, j = matched.nonzero().unbind(1)
    agree = nodes.labels[0, i] == nodes.labels[1, j]
    coordinates = nodes.coordinates.cpu().numpy()
    return MatchedPairs(coordinates[0, i.cpu()], coordinates[1, j.cpu()], agree.cpu().numpy())


def features_at(maps: dict[str, Tensor], coordinates: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n h"]:
    """Return the network's features of encoder levels 2 and 3 at the nodes, each normalised to unit length."""
    grid = (2 * coordinates.flip(-1) - 1)[:, :, None]
    read = [F.grid_sample(maps[level], grid, align_corners=False)[..., 0].mT for level in ("e2", "e3")]
    return torch.cat([F.normalize(level, dim=-1) for level in read], -1)


def draw_pairs(images: Sequence[np.ndarray], found: dict[str, MatchedPairs], most: int = 40) -> bytes:
    """Draw the two images side by side for each kind of matching; lines between different tissues are red."""
    figure, axes = new_figure(len(found), 2.4, 4.2)
    height, width = images[0].shape[:2]
    for axis, (name, matched) in zip(axes, found.items(), strict=True):
        axis.imshow(np.concatenate(list(images), 1))
        step = max(1, len(matched.agree) // most)
        for a, b, same in list(zip(matched.first, matched.second, matched.agree, strict=True))[::step]:
            colour = "#2a9d6f" if same else "#d9534f"
            axis.plot(
                [a[1] * width, (1 + b[1]) * width],
                [a[0] * height, b[0] * height],
                color=colour,
                linewidth=0.7,
            )
        axis.set(xticks=[], yticks=[])
        axis.set_title(f"{name}: {100 * matched.share:.0f} % in the same tissue", fontsize=8)
    return png_bytes(figure)


def draw_cams(images: Sequence[np.ndarray], maps: dict[str, Float[np.ndarray, "b h w"]]) -> bytes:
    """Draw a row per image: the image, then the map of each method over it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.8 * (1 + len(maps)), 1.9 * len(images)), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(images), 1 + len(maps), squeeze=False)
    for row, image in enumerate(images):
        for axis, name in zip(axes[row], ("image", *maps), strict=True):
            axis.imshow(image)
            if name in maps:
                axis.imshow(maps[name][row], cmap="inferno", alpha=0.5, vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            if row == 0:
                axis.set_title(name, fontsize=8)
    return png_bytes(figure)
