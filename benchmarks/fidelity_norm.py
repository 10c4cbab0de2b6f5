"""References of `fidelity.py` for methods that adapt or match BatchNorm statistics. Each yields (ours, reference)."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fidelity_tools as tools
from fidelity_tools import SIZE, Adam, Pairs, Sgd, affine, case, entropies, gradient, plain_copy, use
from ttdg import adaptation
from ttdg.adaptation.methods.pass_ import published_uncertainty
from ttdg.adaptation.pass_prompts import Prompts
from ttdg.adaptation.views import SQUARE_VIEWS

adapt = partial(adaptation.adapt, activation="softmax")  # the labels of the network exclude each other


def source() -> Pairs:
    network, batches = case()
    ours, model = adapt(network, "source"), plain_copy(network, tools.source)
    return ((ours(x), model(x)) for x in batches)


def norm() -> Pairs:
    network, batches = case()
    ours, model = adapt(network, "norm"), plain_copy(network, tools.batch)
    return ((ours(x), model(x)) for x in batches)


def alpha_bn(**options: Any) -> Pairs:
    network, batches = case()
    ours, model = adapt(network, "alpha-bn", **{"alpha": 0.3, **options}), plain_copy(network, tools.mix(0.3))
    return ((ours(x), model(x)) for x in batches)


def dua(**options: Any) -> Pairs:
    network, batches = case()
    ours, model = adapt(network, "dua", **options), plain_copy(network, tools.source)
    for number, x in enumerate(batches, start=1):
        use(model, tools.train(0.1 * 0.94**number + 0.005))
        model(torch.cat([view(x) for view in SQUARE_VIEWS]))
        use(model, tools.source)
        yield ours(x), model(x)


def intent(**options: Any) -> Pairs:
    network, batches = case()
    ours, model = adapt(network, "intent", **options), plain_copy(network, tools.source)
    for x in batches:
        use(model, tools.record)
        model(x)
        members = []
        for r in (0, 0.2, 0.4, 0.6, 0.8, 1):
            use(model, tools.between(r))
            members.append(model(x).softmax(1))
        for image, answer in enumerate(ours(x).softmax(1)):
            p = [member[image] for member in members]
            H = [-(q * q.log2()).sum(0) for q in p]
            inside = [q.argmax(0) > 0 for q in p]
            e = torch.stack(
                [
                    (h[i].mean() + h[~i].mean()) / 2 if i.any() and not i.all() else h.mean()
                    for h, i in zip(H, inside, strict=True)
                ]
            )
            w = ((e.max() - e) / (e.max() - e.min())).softmax(0)
            yield answer, sum(a * q for a, q in zip(w, p, strict=True))


def domain_adaptor(**options: Any) -> Pairs:
    network, batches = case()
    ours = adapt(network, "domainadaptor", **{"lr": 1e-2, **options})
    for x in batches:
        model = plain_copy(network, tools.adamix)
        z = model(x)
        z = z - z.mean(1, keepdim=True).detach()
        T = (2 * z.std(1, keepdim=True)).detach().clamp(0.1, 20)
        H, theta = entropies(z / T), affine(model)
        samples, squares = H.flatten(), T.flatten()[:, None] ** 2
        Sgd(theta, 1e-2).step(gradient(samples.mean() * squares.mean(), theta))
        yield ours(x), model(x)


def pass_(**options: Any) -> Pairs:
    """Two steps a batch, the average, and the fallback; the first prompts are shared; single precision."""
    network, batches = case(torch.float32)
    ours = adapt(network, "pass", **options)
    torch.manual_seed(0)
    decorator = copy.deepcopy(Prompts(3, (12, 4, 4), 512).decorator)
    model = plain_copy(network, tools.source)
    frozen = copy.deepcopy(model)
    encoder = [
        layer for name in ("layer0", "layer1", "layer4") for layer in tools.norms(getattr(model, name))
    ]
    theta = [*decorator.parameters(), *affine(model)]
    slow, adam, updates = [p.detach().clone() for p in theta], Adam(theta, 5e-3), 0

    def decorated(x: Tensor) -> Tensor:
        h = (
            torch.einsum("oi,bihw->bohw", decorator[0].weight[:, :, 0, 0], x)
            + decorator[0].bias[:, None, None]
        )
        h = (h - h.mean((2, 3), keepdim=True)) / (h.var((2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
        last = decorator[3]
        return x + torch.einsum("oi,bihw->bohw", last.weight[:, :, 0, 0], h.relu()) + last.bias[:, None, None]

    for x in batches:
        with torch.no_grad():
            for p, old in zip(theta, slow, strict=True):
                p.copy_(old)
        for layer, old in zip(tools.norms(model), tools.norms(frozen), strict=True):
            layer.mean, layer.var = old.mean, old.var
        for _ in range(2):
            terms: list[Tensor] = []

            def rule(layer: Any, h: Tensor, terms: list[Tensor] = terms) -> tuple[Tensor, Tensor]:
                home = tools.norms(frozen)[tools.norms(model).index(layer)]
                if layer in encoder:
                    mean, var = h.mean((0, 2, 3)) - home.mean, h.var((0, 2, 3)) - home.var
                    terms.append(mean.abs().mean() + 0.01 * var.abs().mean())
                return tools.train(0.1)(layer, h)

            use(model, rule)
            model(decorated(x))
            adam.step(gradient(torch.stack(terms).sum(), theta))
            updates += 1
            m = 0.1 * 0.94**updates + 0.01
            slow = [(1 - m) * a + m * b.detach() for a, b in zip(slow, theta, strict=True)]
        use(model, tools.source)
        adapted, plain = model(decorated(x)).detach(), frozen(x).detach()
        scores = [
            tools.numpy_score(z.softmax(1)[:, 1:].flatten(2).double().numpy()) for z in (adapted, plain)
        ]
        better = torch.from_numpy(scores[0] < scores[1])
        yield ours(x), torch.where(better[:, None, None, None], adapted, plain)


def pass_score(fallback: Callable = published_uncertainty) -> Pairs:
    """The score of the fallback, for empty masks, discs and random predictions."""
    y, x = np.mgrid[:SIZE, :SIZE]
    disc = np.where((y - 16) ** 2 + (x - 16) ** 2 < 64, 0.95, 1e-3)
    p = np.stack([np.full_like(disc, 1e-3), disc, np.random.default_rng(0).uniform(size=disc.shape)])[:, None]
    logits = torch.from_numpy(np.log(p / (1 - p)))
    yield fallback(logits, "sigmoid"), torch.from_numpy(tools.numpy_score(p.reshape(3, 1, -1)))
