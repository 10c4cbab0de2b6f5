"""References of `fidelity.py` for CPR: labels, affinity, random walk and training. Each yields (ours, reference)."""

import math
from itertools import islice, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fidelity_tools as tools
from fidelity_labels import denoised, masked
from fidelity_site import IMAGES, adapt, log_loss, seed_dropout, site_case, stretched
from fidelity_tools import Adam, Pairs, gradient, plain_copy, use, weights
from ttdg.adaptation.source_free.fundus_views import fundus_strong_view

CELLS = 32  # of a side
QUICK = {"epochs": 1, "affinity_epochs": 2, "salt": "black"}
OFFSETS = [
    (dy, dx) for dy, dx in product(range(4), range(-3, 4)) if (dy or dx > 0) and dy * dy + dx * dx < 16
]


def pairs() -> Tensor:
    """Numbers (2, n) of the cells of all pairs, whose first cell has all neighbours of the half plane."""
    first = product(range(CELLS - 3), range(3, CELLS - 3), OFFSETS)
    return torch.tensor([(y * CELLS + x, (y + dy) * CELLS + x + dx) for y, x, (dy, dx) in first]).T


class Affinity(nn.Module):
    """For each structure a 1×1 convolution (Xavier, gain 4), BatchNorm and ReLU; then a = exp(−mean |g_i − g_j|)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, 2 * channels, 1, bias=False), nn.BatchNorm2d(2 * channels)
        bound = 4 * math.sqrt(6 / (2 * channels))
        self.conv.weight.data.uniform_(-bound, bound, generator=torch.Generator().manual_seed(0))

    def forward(self, cells: Tensor, ends: Tensor) -> Tensor:
        """Affinities (images, structures, pairs)."""
        g = self.norm(self.conv(cells)).relu().flatten(2).unflatten(1, (2, -1))
        return torch.exp(-(g[..., ends[0]] - g[..., ends[1]]).abs().mean(2))


def affinity_loss(a: Tensor, y: Tensor, known: Tensor, ends: Tensor) -> Tensor:
    """¼ within the background, ¼ within the structure, ½ across; mean over structures."""
    one, two = (y.flatten(2)[..., end] > 0.5 for end in ends)
    sure = (known.flatten(2)[..., ends[0]] * known.flatten(2)[..., ends[1]]) > 0.5
    total = torch.zeros(())
    for k in range(2):
        near, far = -(a[:, k] + 1e-5).log(), -(1 - a[:, k] + 1e-5).log()
        p, q, s = one[:, k], two[:, k], sure[:, k]
        total = (
            total + near[s & ~p & ~q].mean() / 4 + near[s & p & q].mean() / 4 + far[s & (p ^ q)].mean() / 2
        )
    return total / 2


def walked(p: Tensor, a: Tensor, ends: Tensor) -> Tensor:
    """Row vector p times the transition matrix of affinities squared, itself squared twice."""
    A = torch.eye(CELLS * CELLS)
    A[ends[0], ends[1]] = A[ends[1], ends[0]] = a**2
    T = A / A.sum(0)
    T = T @ T
    return (p.flatten() @ (T @ T)).view(CELLS, CELLS)


def as_bytes(p: Tensor, round_off: bool) -> Tensor:
    """Probabilities as ours stores them."""
    return (255 * p).round() / 255 if round_off else p


def stages(round_off: bool = True, **options: Any) -> Pairs:
    """Two passes that learn the affinity, and one that trains the weights; `round_off` stores maps as bytes.

    The first pair are the refined maps, before the reference rounds them.
    """
    network, site = site_case()
    network.head.bias.data += 1  # so that both structures have enough sure cells for prototypes
    ours: Any = adapt(network, "cpr", **{**QUICK, **options})
    ours.learn([site])
    model, ends = plain_copy(network, tools.source), pairs()
    order, draw = (torch.Generator().manual_seed(0) for _ in range(2))
    seen, v = denoised(model, site, draw)
    mean = as_bytes(seen.mean, round_off)
    keep = (seen.spread < 0.05) & ((seen.mean > 0.75) == v)

    def passes(count: int) -> Any:
        for _ in range(count):
            for rows in torch.randperm(IMAGES, generator=order).split(8):
                yield rows, stretched(fundus_strong_view(site[rows], draw, "black"))

    def cells(x: Tensor) -> Tensor:
        with torch.no_grad():
            maps = model.decoded(model.encode(x))
        return F.interpolate(maps[0], (CELLS, CELLS), mode="bilinear")

    head = plain_copy(Affinity(12), tools.train(0.1))
    adam = Adam(list(head.parameters()), 3e-2, (0.9, 0.99))
    seed_dropout(draw)
    use(model.train(), tools.train(0.1))
    for rows, strong in passes(2):
        y, known = (F.interpolate(m[rows].float(), (CELLS, CELLS)) for m in (mean > 0.75, keep))
        a = head(cells(strong), ends)
        adam.step(gradient(affinity_loss(a, y, known, ends), adam.parameters))
    for each in (model.eval(), head):
        use(each, tools.source)
    with torch.no_grad():
        a = head(cells(site), ends)
    p = F.interpolate(mean, (CELLS, CELLS), mode="bilinear")
    r = torch.stack([torch.stack([walked(p[i, k], a[i, k], ends) for k in range(2)]) for i in range(IMAGES)])
    r = F.interpolate(r, site.shape[-2:], mode="bilinear")
    r = r / r.amax((2, 3), keepdim=True)
    yield ours.memory.note("refined", torch.arange(IMAGES)) / 255, r
    r = as_bytes(r, round_off)
    y, sure = (r > 0.75).float(), (r < 0.4) | (r > 0.85)
    seed_dropout(draw)
    use(model.train(), tools.train(0.1))
    adam = Adam(list(model.parameters()), 3e-4, (0.9, 0.99))
    for rows, strong in passes(1):
        z, mask = model(strong), sure[rows] & (y[rows] == v[rows])
        q = z.sigmoid()
        focal = (1 - q) ** 2 * y[rows] + q**2 * (1 - y[rows])
        adam.step(gradient(masked(focal * log_loss(z, y[rows]), mask), adam.parameters))
    use(model.eval(), tools.source)
    yield ours.predict_frozen(site).sigmoid(), model(site).sigmoid()
    yield from weights(ours.network, model)


def refined_maps(**options: Any) -> Pairs:
    """The refined maps alone."""
    return islice(stages(**options), 1)


def cpr(**options: Any) -> Pairs:
    """The adapted network and its predictions."""
    return islice(stages(**options), 1, None)
