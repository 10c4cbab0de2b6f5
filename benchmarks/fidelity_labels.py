"""References of `fidelity.py` for DPL and CPR, which denoise the source's labels. Each yields (ours, reference).

Ours draws the masks of dropout twice: for the prototypes, and for the labels. So do the references.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fidelity_tools as tools
from fidelity_site import IMAGES, adapt, log_loss, seed_dropout, site_case, stretched
from fidelity_tools import Adam, Pairs, gradient, plain_copy, use, weights
from ttdg.adaptation.source_free.fundus_views import fundus_strong_view


class Seen(NamedTuple):
    """What ten predictions under dropout say about some images."""

    mean: Tensor  # probability p̄
    spread: Tensor  # u
    features: Tensor


def look(model: nn.Module, x: Tensor, draw: torch.Generator) -> Seen:
    """Ten predictions under dropout, and the features of the decoder at stride 4."""
    seed_dropout(draw)
    model.train()
    z, f = [], []
    with torch.no_grad():
        for _ in range(10):
            maps = model.decoded(model.encode(x))
            z.append(model.head(maps[-1]))
            f.append(maps[1])
    model.eval()
    logits = torch.stack(z)
    return Seen(logits.sigmoid().mean(0), (logits / 2).sigmoid().std(0), torch.stack(f).mean(0))


def prototype_labels(sites: list[Seen], seen: Seen) -> Tensor:
    """v = 1 where the features are nearer to the object's prototype of the whole site than to the background's."""
    found = []
    for k in range(2):
        sums, masses = torch.zeros(2, sites[0].features.shape[1]), torch.zeros(2)
        for part in sites:
            size = part.features.shape[-2:]
            y = F.interpolate((part.mean > 0.75).float(), size)[:, k]
            p, u = (F.interpolate(m, size, mode="bilinear")[:, k] for m in part[:2])
            for side, w in enumerate((y * p, (1 - y) * (1 - p))):
                w = w * (u < 0.05)
                sums[side] += (w[:, None] * part.features).sum((0, 2, 3))
                masses[side] += w.sum()
        far = [((seen.features - c[:, None, None]) ** 2).sum(1) for c in sums / masses[:, None]]
        found.append((far[0] < far[1]).float())
    return F.interpolate(torch.stack(found, 1), seen.mean.shape[-2:])


def denoised(model: nn.Module, site: Tensor, draw: torch.Generator) -> tuple[Seen, Tensor]:
    """Mean, spread and prototype labels of all images, from batches of 8."""
    whole = [look(model, x, draw) for x in site.split(8)]
    again = [look(model, x, draw) for x in site.split(8)]
    v = torch.cat([prototype_labels(whole, seen) for seen in again])
    return Seen(*(torch.cat(part) for part in zip(*again, strict=True))), v


def masked(loss: Tensor, mask: Tensor) -> Tensor:
    return (mask * loss).sum() / mask.sum()


def dpl(**options: Any) -> Pairs:
    """Two passes over twelve images in batches of 8 and 4, after labels under dropout with batch statistics."""
    network, site = site_case()
    ours: Any = adapt(network, "dpl", **{"salt": "black", **options})
    ours.learn([site])
    order, draw = (torch.Generator().manual_seed(0) for _ in range(2))
    seen, v = denoised(plain_copy(network, tools.batch), site, draw)
    y = (seen.mean > 0.75).float()
    mask = (seen.spread < 0.05) & (y == v)
    yield ours.memory.note("labels", torch.arange(IMAGES)).float(), y
    yield ours.memory.note("keep", torch.arange(IMAGES)).float(), mask.float()
    model = plain_copy(network, tools.train(0.1))
    adam = Adam(list(model.parameters()), 2e-3, (0.9, 0.99))
    for rows in (r for _ in range(2) for r in torch.randperm(IMAGES, generator=order).split(8)):
        strong = stretched(fundus_strong_view(site[rows], draw, "black"))
        loss = masked(log_loss(model(strong), y[rows]), mask[rows])
        adam.step(gradient(loss, adam.parameters))
    use(model, tools.source)
    yield ours.predict_frozen(site).sigmoid(), model(site).sigmoid()
    yield from weights(ours.network, model)
