"""Tools of the references of `fidelity.py`: a network and its stream, BatchNorm, optimisers, entropies and scores.

A reference shares with the package only what a comparison must share: weights, images and random numbers.
"""

import copy
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pairs = Iterator[tuple[Tensor, Tensor]]  # (ours, reference)
BATCHES, SIZE = 3, 32
MILD = {"lr": 1e-3}


class TinyUNet(nn.Module):
    """Three levels, with `encode` and `decode`; its logits have a size of about 5 and its statistics are random."""

    def __init__(self, labels: int = 3) -> None:
        super().__init__()

        def stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU())

        self.layer0, self.layer1, self.layer4 = stage(3, 6, 2), stage(6, 8, 2), stage(8, 12, 2)
        self.up1, self.up0, self.head = stage(20, 8, 1), stage(14, 6, 1), nn.Conv2d(6, labels, 1)
        nn.init.normal_(self.head.weight, std=2.0)
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.normal_(std=0.3)
                layer.running_var.uniform_(0.5, 2)
                nn.init.uniform_(layer.weight, 0.5, 1.5)

    def encode(self, images: Tensor) -> tuple[Tensor, ...]:
        a = self.layer0(images)
        b = self.layer1(a)
        return a, b, self.layer4(b)

    def decode(self, features: Sequence[Tensor]) -> Tensor:
        a, b, c = features
        x = self.up1(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        x = self.up0(torch.cat([F.interpolate(x, scale_factor=2), a], 1))
        return self.head(F.interpolate(x, scale_factor=2))

    def forward(self, images: Tensor) -> Tensor:
        return self.decode(self.encode(images))


def case(
    dtype: torch.dtype = torch.float64, images: int = 4, batches: int = BATCHES
) -> tuple[nn.Module, list[Tensor]]:
    """A network and a stream of batches."""
    torch.manual_seed(0)
    network = TinyUNet().to(dtype).eval()
    return network, [torch.randn(images, 3, SIZE, SIZE, dtype=dtype) + 0.5 for _ in range(batches)]


class PlainNorm(nn.Module):
    """BatchNorm written out; `rule(layer, x)` returns the mean and the variance to normalise with."""

    def __init__(self, layer: nn.BatchNorm2d, rule: Callable) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.rule = layer.weight, layer.bias, layer.eps, rule
        self.mean, self.var = layer.running_mean.clone(), layer.running_var.clone()
        self.given = None

    def forward(self, x: Tensor) -> Tensor:
        mean, var = (t[:, None, None] for t in self.rule(self, x))
        return (x - mean) / (var + self.eps).sqrt() * self.weight[:, None, None] + self.bias[:, None, None]


def plain_copy(network: nn.Module, rule: Callable) -> nn.Module:
    """A copy of the network whose BatchNorm layers are `PlainNorm` with this rule."""
    model = copy.deepcopy(network).requires_grad_(True)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, PlainNorm(child, rule))
    return model


def norms(model: nn.Module) -> list[PlainNorm]:
    return [module for module in model.modules() if isinstance(module, PlainNorm)]


def use(model: nn.Module, rule: Callable) -> None:
    for layer in norms(model):
        layer.rule = rule


def affine(model: nn.Module) -> list[Tensor]:
    return [p for layer in norms(model) for p in (layer.weight, layer.bias)]


def source(layer: PlainNorm, x: Tensor) -> tuple[Tensor, Tensor]:
    return layer.mean, layer.var


def batch(layer: PlainNorm, x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)


def mix(share: float) -> Callable:
    def rule(layer: PlainNorm, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = x.detach().mean((0, 2, 3)), x.detach().var((0, 2, 3))
        return (1 - share) * layer.mean + share * mean, (1 - share) * layer.var + share * var

    return rule


def train(momentum: float) -> Callable:
    def rule(layer: PlainNorm, x: Tensor) -> tuple[Tensor, Tensor]:
        layer.mean, layer.var = mix(momentum)(layer, x)
        return batch(layer, x)

    return rule


def record(layer: PlainNorm, x: Tensor) -> tuple[Tensor, Tensor]:
    layer.given = x.mean((0, 2, 3)), x.var((0, 2, 3))
    return batch(layer, x)


def between(share: float) -> Callable:
    """The given share of the recorded statistics, and the rest of the source's."""

    def rule(layer: PlainNorm, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = layer.given
        return (1 - share) * layer.mean + share * mean, (1 - share) * layer.var + share * var

    return rule


def adamix(layer: PlainNorm, x: Tensor) -> tuple[Tensor, Tensor]:
    """AdaMixBN: the first pass of a batch folds the mixed statistics into γ and β."""
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    if layer.given is None:

        def distance(m: Tensor, s: Tensor, n: Tensor, t: Tensor) -> Tensor:
            return ((m - n) ** 2).mean(-1) + ((s - t) ** 2).mean(-1)

        with torch.no_grad():
            own, apart = x.mean((2, 3)), x.std((2, 3))
            far = distance(mean, var.sqrt(), layer.mean, layer.var.sqrt())
            both = distance(own, apart, mean, var.sqrt()) + distance(own, apart, layer.mean, layer.var.sqrt())
            alpha = (1 - far / (far + both)).clamp(0, 1).mean()
            mixed = alpha * layer.var + (1 - alpha) * var
            gamma = layer.weight * ((var + layer.eps) / (mixed + layer.eps)).sqrt()
            beta = layer.bias + alpha * (mean - layer.mean) / (var + layer.eps).sqrt() * gamma
            layer.weight.copy_(gamma)
            layer.bias.copy_(beta)
        layer.given = True
    return mean, var


class Adam:
    """Adam by its formula."""

    def __init__(
        self, parameters: Sequence[Tensor], lr: float, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.parameters, self.lr, self.betas, self.t = list(parameters), lr, betas, 0
        self.m, self.v = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], lr: float | None = None) -> None:
        self.t += 1
        a, b = self.betas
        for p, g, m, v in zip(self.parameters, gradients, self.m, self.v, strict=True):
            m.copy_(a * m + (1 - a) * g)
            v.copy_(b * v + (1 - b) * g * g)
            root = (v / (1 - b**self.t)).sqrt() + 1e-8
            p -= (self.lr if lr is None else lr) * (m / (1 - a**self.t)) / root


class Sgd:
    """Stochastic gradient descent with momentum, by its formula."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, momentum: float = 0.0) -> None:
        self.parameters, self.lr, self.momentum = list(parameters), lr, momentum
        self.velocity = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        for p, g, v in zip(self.parameters, gradients, self.velocity, strict=True):
            v.copy_(self.momentum * v + g)
            p -= self.lr * v


def gradient(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(loss, list(parameters), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def weights(ours: nn.Module, reference: nn.Module) -> Pairs:
    """All parameters of two networks, by name."""
    other = dict(reference.named_parameters())
    return ((p.detach(), other[name].detach()) for name, p in ours.named_parameters())


def entropies(logits: Tensor) -> Tensor:
    p = logits.softmax(1)
    return -(p * p.log()).sum(1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return -(target.softmax(1) * logits.softmax(1).log()).sum(1).mean()


def numpy_score(p: np.ndarray) -> np.ndarray:
    """PASS's −Σp log p/Σp of structures (b, r, pixels), averaged over structures."""
    return (-(p * np.log(p)).sum(2) / p.sum(2)).mean(1)


def numpy_votes(labels: np.ndarray, samples: np.ndarray, structures: int) -> np.ndarray:
    """TEGDA's quality from labels (b, h, w) and the labels (n, b, h, w) of n samples."""
    dice = [
        (2 * ((own > 0) & (other > 0)).sum() + 1e-5) / ((own > 0).sum() + (other > 0).sum() + 1e-5)
        for sample in samples
        for own, other in zip(labels, sample, strict=True)
    ]
    confidence = np.zeros((len(labels), structures))
    for label in range(1, structures + 1):
        p, union = (samples == label).mean(0), (samples == label).any(0)
        H = -p * np.log(p + 1e-6) - (1 - p) * np.log(1 - p + 1e-6)
        H = (H - H.min() + 1e-6) / (H.max() - H.min() + 2e-6)
        confidence[:, label - 1] = (((1 - H) * union).sum((1, 2)) + 1e-6) / (union.sum((1, 2)) + 1e-6)
    return np.mean(dice) * confidence.mean(1)
