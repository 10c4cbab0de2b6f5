"""What a model looks at, and what it matches: Grad-CAM of the last encoder stage, and pairs of matched graphs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.matching import round_matching
from ttdg.prior import MorphologyPrior, feature_maps
from ttdg.report.figures.plots import canvas, png


def last_stage(network: nn.Module, images: Float[Tensor, "b c h w"]) -> str:
    """The name of the module whose output is the encoder's deepest map."""
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
    """Where in the deepest map the evidence for a label lies, 0 to 1, an image at a time."""
    from monai.visualize import GradCAM

    layer = last_stage(network, images[:1])
    cam = GradCAM(nn_module=network, target_layers=layer, postprocessing=lambda raw: raw)
    with torch.enable_grad():  # through the image, since adapters freeze most of a network
        each = [cam(image[None].clone().requires_grad_(), class_idx=label) for image in images]
    maps = torch.cat([torch.as_tensor(one) for one in each])[:, 0].detach()
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return ((maps - low) / (high - low).clamp(min=1e-12)).cpu().numpy()


@dataclass(frozen=True)
class MatchedPairs:
    """Matched nodes of two images: (y, x) in [0, 1] on each, and whether both lie in the same tissue."""

    first: Float[np.ndarray, "k 2"]
    second: Float[np.ndarray, "k 2"]
    agree: np.ndarray

    @property
    def share(self) -> float:
        return float(self.agree.mean()) if len(self.agree) else float("nan")


@torch.no_grad()
def matched_pairs(
    network: nn.Module, prior: MorphologyPrior, images: Float[Tensor, "2 3 h w"], with_prior: bool = True
) -> MatchedPairs:
    """Nodes of one image matched to those of another: through the universe, or by raw features alone.

    Tissues are those of the network's own answer; they say what agrees, and do not guide the matching: with
    the prior a node may go to any point of the universe.
    """
    logits, maps = feature_maps(network, images)
    nodes = prior.nodes(prior.project(maps, images.shape[2:]), logits.argmax(1))
    if with_prior:
        U = round_matching(prior.scores(nodes, typed=False), nodes.mask)
        matched = U[0] @ U[1].mT
    else:
        raw = _raw(maps, nodes.coordinates)
        alike = torch.where(nodes.mask[1], raw[0] @ raw[1].mT, -1e30)
        matched = round_matching(alike[None], nodes.mask[:1])[0]
    i, j = matched.nonzero().unbind(1)
    agree = nodes.labels[0, i] == nodes.labels[1, j]
    places = nodes.coordinates.cpu().numpy()
    return MatchedPairs(places[0, i.cpu()], places[1, j.cpu()], agree.cpu().numpy())


def _raw(maps: dict[str, Tensor], places: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n h"]:
    """The network's own features at the nodes: encoder levels 2 and 3, each of unit length."""
    grid = (2 * places.flip(-1) - 1)[:, :, None]
    read = [F.grid_sample(maps[level], grid, align_corners=False)[..., 0].mT for level in ("e2", "e3")]
    return torch.cat([F.normalize(level, dim=-1) for level in read], -1)


def draw_pairs(images: Sequence[np.ndarray], found: dict[str, MatchedPairs], most: int = 40) -> bytes:
    """The two images side by side, a row for each way of matching; lines that join unlike tissues are red."""
    figure, axes = canvas(len(found), 2.4, 4.2)
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
    return png(figure)


def draw_cams(images: Sequence[np.ndarray], maps: dict[str, Float[np.ndarray, "b h w"]]) -> bytes:
    """A row for each image: the image, then each method's map over it."""
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
    return png(figure)
