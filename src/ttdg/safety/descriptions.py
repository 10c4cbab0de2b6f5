"""What the source network says of images, as numbers per image: appearance, features of its layers, predicted shapes.

A description consists of groups. The group `appearance` describes the input, the groups of layers hold the mean and the
spread of every channel at the input of a normalisation layer, and the group `shape` describes the prediction. The
distance of a site is measured for each group, so that a reader sees at which depth of the network it arises.
"""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from ttdg.errors import UserError
from ttdg.networks import batchnorm
from ttdg.safety.appearance import APPEARANCE, describe

LAYERS = 8  # layers that are described, spread over the depth of the network
SHAPE = "shape"  # group of the predicted structures
SMALL = 1e-4  # added before logarithms

Description = dict[str, Float[Tensor, "b f"]]  # by group


def described_layers(network: nn.Module, most: int = LAYERS) -> list[str]:
    """Return the names of at most `most` normalisation layers; of convolutions if the network has none."""
    kinds: tuple[type[nn.Module], ...] = (_NormBase, nn.GroupNorm)
    names = [name for name, module in network.named_modules() if isinstance(module, kinds)]
    names = names or [name for name, module in network.named_modules() if isinstance(module, _ConvNd)]
    chosen = torch.linspace(0, len(names) - 1, min(most, len(names))).round().long().tolist()
    return [names[i] for i in chosen]


class SourceShadow:
    """A copy of the source network that describes every batch which it predicts. It never adapts.

    Args:
        network: The source network; it is copied.
        layers: Names of the layers to describe; None chooses them.
    """

    def __init__(self, network: nn.Module, layers: Sequence[str] | None = None) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        if batchnorm.has_layers(self.network):
            batchnorm.use(self.network, batchnorm.EVAL)
        self.layers = list(described_layers(self.network) if layers is None else layers)
        self._taken: Description = {}
        known = dict(self.network.named_modules())
        if unknown := [name for name in self.layers if name not in known]:
            raise UserError(
                f"the fingerprint describes the layer {unknown[0]!r}, which this network does not have; fit the part "
                "'fingerprint' again"
            )
        for name in self.layers:
            self.network.get_submodule(name).register_forward_pre_hook(self._hook(name))

    @torch.no_grad()
    def __call__(
        self, images: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b l y x"], dict[str, Float[Tensor, "b f"]]]:
        """Return the logits and the description of a batch."""
        self._taken = {}
        logits = self.network(images)
        layers = {name: self._taken[name] for name in self.layers if name in self._taken}
        description = {APPEARANCE: describe(images.float()), **layers, SHAPE: describe_shapes(logits)}
        self._taken = {}
        return logits, {name: x.nan_to_num(0.0, 1e4, -1e4) for name, x in description.items()}

    def _hook(self, name: str):  # type: ignore[no-untyped-def]
        def take(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            variance, mean = torch.var_mean(inputs[0].float().flatten(2), 2, correction=0)
            self._taken[name] = torch.cat([mean, (variance + SMALL).log() / 2], 1)

        return take


def describe_shapes(logits: Float[Tensor, "b l y x"]) -> Float[Tensor, "b f"]:
    """Describe the predicted structures of each image, and how sure the prediction is.

    For each label but the first: the logarithm of its area, its centre, its extent and the length of its border. One
    label is a sigmoid map. An absent structure has its centre in the middle.
    """
    P = logits.float().softmax(1)[:, 1:] if logits.shape[1] > 1 else logits.float().sigmoid()
    height, width = P.shape[2:]
    y = torch.linspace(-1, 1, height, device=P.device)[:, None]
    x = torch.linspace(-1, 1, width, device=P.device)[None, :]
    area = P.mean((2, 3))
    weight = P / (P.sum((2, 3), keepdim=True) + 1.0)  # one pixel of area is spread over the middle
    at_y, at_x = (weight * y).sum((2, 3)), (weight * x).sum((2, 3))
    extent = (weight * (y.square() + x.square())).sum((2, 3)) - at_y.square() - at_x.square()
    border = P.diff(dim=2).abs().mean((2, 3)) + P.diff(dim=3).abs().mean((2, 3))
    whole = torch.cat([P, 1 - P.sum(1, keepdim=True)], 1).clamp(1e-7, 1)
    entropy = -(whole * whole.log()).sum(1).mean((1, 2))
    columns = [(area + 1e-3).log(), at_y, at_x, (extent.clamp(min=0) + 1e-4).sqrt(), (border + 1e-3).log()]
    return torch.cat([*columns, (entropy + 1e-3).log()[:, None]], 1)
