"""References of `fidelity.py` for methods with gradient steps on predictions. Each yields (ours, reference)."""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import fidelity_tools as tools
from fidelity_tools import (
    BATCHES,
    MILD,
    SIZE,
    Adam,
    Pairs,
    Sgd,
    affine,
    case,
    entropies,
    gradient,
    plain_copy,
    use,
    weights,
)  # fmt: skip
from ttdg import adaptation
from ttdg.adaptation.methods.tegda import QUALITIES
from ttdg.adaptation.views import SIX_VIEWS, SQUARE_VIEWS, photometric_view
from ttdg.networks import NetworkSpec, Segmenter, pyramid
from ttdg.networks.heads.noise import NoiseDiscriminator

adapt = partial(adaptation.adapt, activation="softmax")  # the labels of the network exclude each other


def tent(**options: Any) -> Pairs:
    network, batches = case()
    ours, model = adapt(network, "tent", **{**MILD, **options}), plain_copy(network, tools.batch)
    adam = Adam(affine(model), 1e-3)
    for x in batches:
        z = model(x)
        yield ours(x), z
        adam.step(gradient(entropies(z).mean(), adam.parameters))
    yield from weights(ours.network, model)


def sar(**options: Any) -> Pairs:
    network, batches = case()
    ours = adapt(network, "sar", **{"lr": 1e-2, "recover": 0.0, **options})
    model, margin = plain_copy(network, tools.batch), 0.4 * math.log(3)
    theta = [p for name, module in model.named_children() if name != "layer4" for p in affine(module)]
    sgd = Sgd(theta, 1e-2, momentum=0.9)
    for x in batches:
        z = model(x)
        yield ours(x), z
        H = entropies(z)
        sure = margin > H
        g = gradient(H[sure].mean(), theta)
        length = torch.cat([part.flatten() for part in g]).norm()
        start = [t.detach().clone() for t in theta]
        with torch.no_grad():
            for t, part in zip(theta, g, strict=True):
                t += 0.05 * part / (length + 1e-12)
        H = entropies(model(x))
        g = gradient(H[sure & (margin > H)].mean(), theta)
        with torch.no_grad():
            for t, old in zip(theta, start, strict=True):
                t.copy_(old)
        sgd.step(g)
    yield from weights(ours.network, model)


def cotta(**options: Any) -> Pairs:
    """Without views; the draws that restore weights are shared.

    The teachers start apart from the students: at equal weights the gradient is rounding error, which Adam amplifies.
    """
    network, batches = case()
    ours: Any = adapt(network, "cotta", **{**MILD, "threshold": 0.0, "restore": 0.3, **options})
    student, teacher = plain_copy(network, tools.batch), plain_copy(network, tools.batch)
    with torch.no_grad():
        for one, two in zip(ours.teacher.parameters(), teacher.parameters(), strict=True):
            two.copy_(one.add_(torch.randn_like(one), alpha=0.03))
    theta, draw = list(student.parameters()), torch.Generator().manual_seed(0)
    start, adam = [p.detach().clone() for p in theta], Adam(theta, 1e-3)
    for x in batches:
        target = teacher(x).detach()
        yield ours(x), target
        adam.step(gradient(tools.cross_entropy(student(x), target), theta))
        uniform = torch.rand(sum(p.numel() for p in theta), generator=draw).split([p.numel() for p in theta])
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), theta, strict=True):
                slow.copy_(0.999 * slow + 0.001 * fast)
            for p, old, u in zip(theta, start, uniform, strict=True):
                p.copy_(torch.where(u.view_as(p) < 0.3, old, p))
    yield from weights(ours.network, student)
    yield from weights(ours.teacher, teacher)


def memo(**options: Any) -> Pairs:
    """With our views of the images."""
    network, batches = case()
    ours = adapt(network, "memo", **{"lr": 1e-2, **options})
    for x in batches:
        model, others = plain_copy(network, tools.mix(1 / 17)), x.repeat(7, 1, 1, 1)
        seen = [x, *photometric_view(others, torch.Generator().manual_seed(0)).chunk(7)]
        p = [v.inverse(model(v(y)).softmax(1)) for v, y in zip(SQUARE_VIEWS, seen, strict=True)]
        mean, theta = torch.stack(p).mean(0), list(model.parameters())
        Sgd(theta, 1e-2).step(gradient(-(mean * mean.log()).sum(1).mean(), theta))
        yield ours(x), model(x)


def grata(**options: Any) -> Pairs:
    """With −p log p, sigmoid channels, and our photometric view."""
    network, batches = case()
    ours = adapt(network, "grata", **{**MILD, "head": "sigmoid", "entropy_form": "half", **options})
    model, draw = plain_copy(network, tools.batch), torch.Generator().manual_seed(0)
    theta = affine(model)
    adam = Adam(theta, 1e-3)
    for x in batches:
        p = model(x).sigmoid()
        a = gradient(-(p * p.log()).sum(1).mean(), theta)
        start = [t.detach().clone() for t in theta]
        with torch.no_grad():
            for t, g in zip(theta, a, strict=True):
                t -= g
            q = torch.stack([v.inverse(model(v(x)).sigmoid()) for v in SIX_VIEWS]).mean(0)
        z = model(photometric_view(x, draw))
        b = gradient(F.binary_cross_entropy_with_logits(z, q), theta)
        with torch.no_grad():
            for t, old in zip(theta, start, strict=True):
                t.copy_(old)
        one, two = (torch.cat([g.flatten() for g in gradients]) for gradients in (a, b))
        cos = (one @ two / (one.norm() * two.norm())).item()
        adam.step(b, 1e-3 / 4 * (cos + 1) ** 2)
        yield ours(x), model(x)
    yield from weights(ours.network, model)


def photometric_noise(**options: Any) -> Pairs:
    """The photometric view of GraTa and MEMO in NumPy, for the images that draw no blur."""
    images = torch.randn(64, 3, SIZE, SIZE, dtype=torch.float64)
    ours, draw = (
        photometric_view(images, torch.Generator().manual_seed(0), **options),
        torch.Generator().manual_seed(0),
    )

    def drawn(low: float, high: float, share: float, neutral: float, channels: int = 1) -> np.ndarray:
        applied, u = (torch.rand(64, n, 1, 1, generator=draw).numpy() for n in (1, channels))
        return np.where(applied < share, low + (high - low) * u, neutral)

    def scaled(x: np.ndarray) -> np.ndarray:
        low, high = (f(x, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
        return (x - low) / (high - low)

    x = scaled(images.numpy()) * drawn(0.5, 1.5, 0.75, 1, 3)
    mean, low, high = (f(x, axis=(2, 3), keepdims=True) for f in (np.mean, np.min, np.max))
    x = np.clip(mean + drawn(0.5, 1.5, 0.75, 1) * (x - mean), low, high)
    low, high = (f(x, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
    x = high - (high - low) * (1 - scaled(x)) ** drawn(0.5, 2, 0.75, 1)
    grain = torch.randn(images.shape, generator=draw, dtype=images.dtype).numpy()
    x = x + drawn(0, 0.05, 0.5, 0) * grain  # the drawn value is the standard deviation
    sharp = torch.from_numpy(drawn(0.5, 1.5, 0.5, 0).ravel() == 0)
    low, high = (f(images.numpy(), axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
    yield ours[sharp], torch.from_numpy(low + (high - low) * scaled(x))[sharp]


def nc_ttt(kind: str, **options: Any) -> Pairs:
    """With a random discriminator of features; single precision."""
    lr = {"adam": 1e-3, "sgd": 0.3}[kind]
    torch.manual_seed(0)
    network = Segmenter(NetworkSpec(3, "light")).eval()
    channels = pyramid.level_modules(network)[2][1].shape[1]
    part = NoiseDiscriminator(channels, channels).to_part(2)

    source = SimpleNamespace(network=network, parts={"nc-ttt": part})
    ours = adaptation.adapt(source, "nc-ttt", **{"lr": lr, "steps": 5, "optimiser": kind, **options})
    judge = NoiseDiscriminator.from_part(part, torch.device("cpu"))
    for x in (torch.randn(4, 3, 64, 64) for _ in range(3)):
        model = plain_copy(network, tools.source)
        early = model.unet.encoder.stages[:3]
        use(early, tools.train(0.1))
        theta = list(early.parameters())
        step = Adam(theta, lr) if kind == "adam" else Sgd(theta, lr)
        for _ in range(5):
            step.step(gradient(torch.log1p(judge(model.encode(x)[2]).exp()).mean(), theta))
        use(early, tools.source)
        yield ours(x), model(x)


def tegda_quality(quality: str = "released") -> Pairs:
    """The quality of predictions, given the predictions under dropout."""
    torch.manual_seed(0)
    for _ in range(BATCHES):
        logits = 3 * torch.randn(4, 4, SIZE, SIZE, dtype=torch.float64)
        dropped = logits + 2 * torch.randn(10, *logits.shape, dtype=torch.float64)
        votes = tools.numpy_votes(logits.argmax(1).numpy(), dropped.argmax(2).numpy(), 3)
        yield QUALITIES[quality](logits, dropped, "softmax"), torch.from_numpy(votes)


def tegda(**options: Any) -> Pairs:
    """The step; the draws of dropout are shared."""
    network, batches = case()
    ours: Any = adapt(network, "tegda", **{**MILD, **options})
    student, teacher = plain_copy(network, tools.batch), plain_copy(network, tools.batch)
    theta, draw, bank = list(student.parameters()), torch.Generator().manual_seed(0), torch.empty(0)
    adam = Adam(theta, 1e-3, (0.5, 0.999))

    def apart(a: Tensor, b: Tensor) -> Tensor:
        return (tools.cross_entropy(a, b) + tools.cross_entropy(b, a)) / (2 * math.log2(3))

    for x in batches:
        taught, (*skips, deepest) = teacher(x).detach(), student.encode(x)
        z, refined, samples = student.decode((*skips, deepest)), deepest, []
        for _ in range(10):
            kept = 2 * deepest * (torch.rand(deepest.shape, generator=draw) >= 0.5)
            samples.append(student.decode((*skips, kept)).argmax(1).numpy())
        a = tools.numpy_votes(z.argmax(1).numpy(), np.stack(samples), 2).mean()
        if len(bank):
            cos = F.cosine_similarity(deepest.detach().flatten(1)[:, None], bank.flatten(1)[None], dim=2)
            best = cos.argsort(1, descending=True)[:, :5]
            near = cos.gather(1, best)
            r = near.mean(1)[:, None, None, None]
            refined = (1 - r) * deepest + r * (near.softmax(1)[..., None, None, None] * bank[best]).sum(1)
        bank = torch.cat([bank, deepest.detach()])
        adam.step(gradient(apart(z, taught) + a * apart(z, student.decode((*skips, refined))), theta))
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), theta, strict=True):
                slow.copy_(a * slow + (1 - a) * fast)
        yield ours(x), student(x)
    yield from weights(ours.teacher, teacher)
