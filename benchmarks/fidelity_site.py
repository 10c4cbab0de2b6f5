"""References of `fidelity.py` for source-free methods that learn a whole site. Each yields (ours, reference).

Ours stores images as bytes, and computes logits and losses in single precision; so do the references. They share with
ours the order of the images, the strong views and the seeds of dropout.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage
from torch import Tensor, nn

import fidelity_tools as tools
from fidelity_tools import Adam, Pairs, TinyUNet, gradient, plain_copy, use, weights
from ttdg import adaptation
from ttdg.adaptation.source_free.fundus_views import fundus_strong_view

IMAGES, WIDE = 12, 64  # number of images of the site, and pixels of a side
adapt = partial(adaptation.adapt, activation="sigmoid")  # channel 0 is the cup, channel 1 the disc


class Dropout(nn.Dropout):
    """Dropout whose mask does not depend on the memory layout of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape) >= self.p) / (1 - self.p) if self.training else x


class SiteUNet(TinyUNet):
    """A network with dropout in its deepest decoder block and with decoder maps, as the published ones have.

    It has no biases before BatchNorm: their gradient is rounding error, which Adam amplifies.
    """

    def __init__(self, labels: int) -> None:
        super().__init__(labels)
        self.dropout = Dropout(0.3)
        for stage in (self.layer0, self.layer1, self.layer4, self.up1, self.up0):
            stage[0].bias = None

    def decoded(self, features: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        a, b, c = features
        low = self.dropout(self.up1(torch.cat([F.interpolate(c, scale_factor=2), b], 1)))
        high = self.up0(torch.cat([F.interpolate(low, scale_factor=2), a], 1))
        return c, low, F.interpolate(high, scale_factor=2)

    def decode(self, features: tuple[Tensor, ...]) -> Tensor:
        return self.head(self.decoded(features)[-1])


def site_case(labels: int = 2) -> tuple[nn.Module, Tensor]:
    """A network, and a site of smooth images that span [0, 1] in steps of 1/255.

    The network has the BatchNorm statistics of darker images.
    """
    torch.manual_seed(0)
    network = SiteUNet(labels)
    x = F.interpolate(torch.randn(IMAGES, 3, 8, 8), size=(WIDE, WIDE), mode="bilinear")
    x = stretched(x + 0.1 * torch.randn_like(x))
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    network(x**2)
    return network.eval(), (255 * x).round() / 255


def stretched(x: Tensor) -> Tensor:
    """Images whose minimum is 0 and whose maximum is 1."""
    low, high = (f(x, (1, 2, 3), keepdim=True) for f in (torch.amin, torch.amax))
    return (x - low) / (high - low)


def seed_dropout(draw: torch.Generator) -> None:
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=draw)))


def log_loss(z: Tensor, y: Tensor) -> Tensor:
    """−y log p − (1−y) log(1−p) for each pixel and channel."""
    return -(y * F.logsigmoid(z) + (1 - y) * F.logsigmoid(-z))


def strong_view(salt: str = "black") -> Pairs:
    """The strong view of CBMT, DPL and CPR, image by image in NumPy, on numbers and not on bytes."""
    x = torch.rand(64, 3, WIDE, WIDE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours, draw = (
        fundus_strong_view(x, torch.Generator().manual_seed(0), salt),
        torch.Generator().manual_seed(0),
    )
    area = WIDE * WIDE
    few, many = (math.ceil(0.004 * area * 3 * share) for share in (0.2, 0.8))

    def uniform(low: float = 0, high: float = 1) -> list[float]:
        return (low + (high - low) * torch.rand(64, generator=draw)).tolist()

    kinds, places = uniform(), torch.randint(area, (64, many), generator=draw).numpy()
    lit, gammas = uniform(), uniform(0.5, 3.5)
    erased, sizes, ratios = uniform(), uniform(0.02, 0.06), uniform(0.3, 0.6)
    tops, lefts, greys = uniform(), uniform(), uniform()
    for i, image in enumerate(x.numpy().copy()):
        if kinds[i] > 0.75:
            image.reshape(3, area)[:, places[i, :few]] = 1 / 255
        elif kinds[i] > 0.5:
            image.reshape(3, area)[:, places[i]] = 0
        if lit[i] < 0.5:
            image **= 1 / gammas[i]
        if erased[i] < 0.5:
            w, h = int(math.sqrt(sizes[i] * area / ratios[i])), int(math.sqrt(sizes[i] * area * ratios[i]))
            top, left = int(tops[i] * (WIDE - h + 1)), int(lefts[i] * (WIDE - w + 1))
            image[:, top : top + h, left : left + w] = greys[i]
        yield ours[i], torch.from_numpy(image)


def balance(bank: Tensor) -> Tensor:
    """CBMT's weight of the background of a structure, from its probabilities in all images."""
    low, high = 0.75 * 0.2, 1 - 0.25 * 0.2
    background, foreground = bank[(low < bank) & (bank < 0.75)], bank[(bank > 0.75) & (bank < high)]
    return -foreground.log().mean() / -(1 - background).log().mean()


def cbmt(**options: Any) -> Pairs:
    """Two passes over twelve images in batches of 8 and 4. The rarest structure, which ours balances, is the cup."""
    network, site = site_case()
    network.head.bias.data.copy_(torch.tensor([-1.0, 1.0]))
    ours: Any = adapt(network, "cbmt", **{"epochs": 2, "salt": "black", **options})
    ours.learn([site])
    student, teacher = plain_copy(network, tools.source), plain_copy(network, tools.source)
    adam = Adam(list(student.parameters()), 5e-4, (0.9, 0.99))
    order, draw = (torch.Generator().manual_seed(0) for _ in range(2))
    with torch.no_grad():
        bank = teacher(site).sigmoid()
    seed_dropout(draw)
    for model in (student.train(), teacher.train()):
        use(model, tools.train(0.1))
    for epoch in range(2):
        w = balance(bank[:, 0])
        for rows in torch.randperm(IMAGES, generator=order).split(8):
            strong = stretched(fundus_strong_view(site[rows], draw, "black"))
            with torch.no_grad():
                bank[rows] = teacher(site[rows]).sigmoid()
            y = (bank[rows] > 0.75).float()
            m = torch.ones_like(y)
            m[:, 0][y[:, 0] == 0] = w
            loss = (m * log_loss(student(strong), y)).sum() / m.sum()
            adam.step(gradient(loss, adam.parameters), 5e-4 * 0.9**epoch)
            with torch.no_grad():
                for slow, fast in zip(teacher.parameters(), adam.parameters, strict=True):
                    slow.copy_(0.98 * slow + 0.02 * fast)
    use(teacher.eval(), tools.source)
    yield ours.predict_frozen(site).sigmoid(), teacher(site).sigmoid()
    yield from weights(ours.network, student)
    yield from weights(ours.teacher, teacher)


def largest(mask: np.ndarray) -> np.ndarray:
    """The largest component of a mask; of several, the one with the last pixel."""
    parts, count = ndimage.label(mask)
    places = [np.flatnonzero(parts == 1 + i) for i in range(count)]
    best = max(range(count), key=lambda i: (len(places[i]), places[i][-1]), default=count)
    return parts == 1 + best


def reliable(mean: Tensor, threshold: float) -> Tensor:
    """Pixels of each class above the threshold; of a structure the largest component in each image."""
    sure = (mean > threshold).numpy()
    for image in sure:
        image[1:] = [largest(mask) for mask in image[1:]]
    return torch.from_numpy(sure).float()


def upl_sfda(**options: Any) -> Pairs:
    """Two steps on six images each, labelled above 0.8; both forward passes of the paper, each with its own dropout."""
    network, site = site_case(3)
    ours: Any = adaptation.adapt(
        network, "upl-sfda", activation="softmax",
        **{"epochs": 1, "draw": 6, "threshold": 0.8, "lr": 1e-3, **options},
    )  # fmt: skip
    ours.learn([site])
    models = [plain_copy(network, tools.source) for _ in range(4)]
    for model in models[1:]:
        model.layer0, model.layer1, model.layer4 = models[0].layer0, models[0].layer1, models[0].layer4
    encoder = [p for name, p in models[0].named_parameters() if name.startswith("layer")]
    decoders = [p for m in models for name, p in m.named_parameters() if not name.startswith("layer")]
    order, draw = (torch.Generator().manual_seed(0) for _ in range(2))

    def members(x: Tensor) -> Tensor:
        """Predictions of each decoder on its own quarter turn, turned back."""
        turned = [x.rot90(turns, (2, 3)) for turns in range(4)]
        z = [model.decode(models[0].encode(view)) for model, view in zip(models, turned, strict=True)]
        return torch.stack([a.rot90(-turns, (2, 3)) for turns, a in enumerate(z)]).softmax(2)

    seed_dropout(draw)
    for model in models:
        use(model.train(), tools.train(0.1))
    one, two = Adam(encoder, 1e-3), Adam(decoders, 1e-3, (0.5, 0.999))
    for rows in torch.randperm(IMAGES, generator=order).split(6):
        turns = torch.randint(8, (6,), generator=draw).tolist()
        x = torch.stack([a.rot90(n if n < 4 else 0, (1, 2)) for a, n in zip(site[rows], turns, strict=True)])
        with torch.no_grad():
            y = reliable(members(x).mean(0), 0.8)
        q = members(x)
        overlap, total = (q * y).sum((3, 4)), y.sum((2, 3)) + ((q * y) ** 2).sum((3, 4))
        dice = (1 - (2 * overlap + 1e-4) / (total + 1e-4)).mean()
        mean = q.mean(0)
        g = gradient(dice - (mean * (mean + 1e-10).log2()).mean(), [*encoder, *decoders])
        one.step(g[: len(encoder)])
        two.step(g[len(encoder) :])
    for model in models:
        use(model.eval(), tools.source)
    yield ours.predict_frozen(site).softmax(1), members(site).mean(0)
    for network, model in zip((ours.network, *ours.copies), models, strict=True):
        yield from weights(network, model)
