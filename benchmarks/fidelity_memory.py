"""References of `fidelity.py` for methods with a memory of past images. Each yields (ours, reference)."""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fidelity_tools as tools
from fidelity_tools import Adam, Pairs, affine, case, entropies, gradient, plain_copy, use, weights
from ttdg import adaptation

adapt = partial(adaptation.adapt, activation="softmax")  # the labels of the network exclude each other


def cosines(query: Tensor, keys: list[Tensor]) -> Tensor:
    """Cosines of one vector with each of some vectors."""
    return torch.stack([query.flatten() @ k.flatten() / (query.norm() * k.norm()) for k in keys])


def shifted_amplitude(x: Tensor) -> Tensor:
    """The amplitude of the spectrum, shifted along all axes, as the authors of VPTTA do."""
    return torch.fft.fftshift(torch.fft.fft2(x).abs())


def prompted(x: Tensor, prompt: Tensor) -> Tensor:
    """VPTTA's image with the prompt as a factor of its lowest amplitudes."""
    side, k = x.shape[-1], prompt.shape[-1]
    start = (side - k) // 2
    window = torch.ones_like(x)
    window[..., start : start + k, start : start + k] = prompt
    amplitude = torch.fft.ifftshift(shifted_amplitude(x) * window)
    phase = torch.fft.fft2(x).angle()
    return torch.fft.ifft2(torch.complex(amplitude * phase.cos(), amplitude * phase.sin())).real


def vptta(**options: Any) -> Pairs:
    """One image at a time; the memory holds 18 prompts and is in use from the 17th image on.

    Ours computes the prompt in single precision.
    """
    network, batches = case(images=1, batches=22)
    ours = adapt(network, "vptta", **{"lr": 0.05, "size": 0.1, "capacity": 18, **options})
    model = plain_copy(network, tools.source)
    prompt = torch.ones(1, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    adam, memory = Adam([prompt], 0.05, (0.9, 0.99)), list[tuple[Tensor, Tensor]]()
    for n, x in enumerate(batches, start=1):
        lam, terms = 1 / (math.sqrt(n) / 5 + 1), list[Tensor]()

        def rule(
            layer: Any, h: Tensor, lam: float = lam, terms: list[Tensor] = terms
        ) -> tuple[Tensor, Tensor]:
            mean, var = tools.mix(lam)(layer, h)
            own_mean, own_std = h.mean((2, 3)), h.std((2, 3))
            terms.append((mean - own_mean).abs().mean() + (var.sqrt() - own_std).abs().mean())
            return mean, var

        use(model, rule)
        key, start = shifted_amplitude(x)[..., 14:17, 14:17], torch.ones_like(prompt)
        if len(memory) >= 16:
            cos, best = cosines(key, [k for k, _ in memory]).topk(16)
            start = sum(w * memory[i][1] for w, i in zip((cos / 0.2).softmax(0), best, strict=True))
        with torch.no_grad():
            prompt.copy_(start)
        model(prompted(x, prompt))
        adam.step(gradient(torch.stack(terms).mean(), [prompt]))
        memory = [*memory, (key, prompt.detach().clone())][-18:]
        yield ours(x), model(prompted(x, prompt))


def sictta(**options: Any) -> Pairs:
    """One image at a time; the random pixels are shared."""
    network, batches = case(images=1, batches=45)
    ours = adapt(network, "sictta", **options)
    anchor, model = plain_copy(network, tools.source), plain_copy(network, tools.batch)
    draw, pool, scores = torch.Generator().manual_seed(0), list[tuple[Tensor, Tensor]](), list[float]()
    for x in batches:
        with torch.no_grad():
            q, answer = model.encode(x)[-1], anchor(x)
        if pool:
            cos, best = cosines(q, [k for k, _ in pool]).topk(min(5, len(pool)))
            r, near = cos.mean(), [pool[i] for i in best]
            blended = (1 - r) * q + r * sum(w * k for w, (k, _) in zip(cos.softmax(0), near, strict=True))
            with torch.no_grad():
                *skips, deepest = model.encode(torch.cat([x, *(image for _, image in near)]))
                answer_near = model.decode((*skips, torch.cat([blended, deepest[1:]])))[:1]
        pixels = torch.randint(x[0, 0].numel(), (1, 200), generator=draw)[0]
        U = anchor(x).detach().softmax(1)[0].flatten(1)[:, pixels].T
        U = U / U.norm(dim=1, keepdim=True)
        M = (U.T @ U).softmax(1)
        e = -(M * (M + 1e-5).log()).sum(1).mean().item()
        scores = [*scores, e][-40:]
        threshold = len(pool) / 5 if len(pool) < 5 else 0.9
        rank = math.floor((1 - threshold) * len(scores))
        neighbours = len(pool) > 0
        if rank > 0 and e <= sorted(scores)[rank - 1]:
            pool = [*pool, (q, x)][-40:]
        yield ours(x).softmax(1), (answer_near if neighbours else answer).softmax(1)


def overlap_entropy(z: Tensor) -> float:
    """Class-compact density of A3-TTA for one image: small for sure predictions."""
    P = z.softmax(1)[0].flatten(1).T
    M = P.T @ P / len(P)
    return -(M * M.log()).mean().item()


def a3_tta(images: int = 1, shared_cosine: bool = False, **options: Any) -> Pairs:
    """The pool is full after 40 images. The rest is blurred, and some of it is too unsure to be its own anchor.

    Each image is standardised by its own anchor. With `shared_cosine` the first cosine of a batch blends all images.
    """
    network, stream = case(images=images, batches=56 // images)
    stream[40 // images :] = [F.avg_pool2d(x, 3, 1, 1) for x in stream[40 // images :]]
    ours: Any = adapt(network, "a3-tta", **options)
    student, teacher = plain_copy(network, tools.batch), plain_copy(network, tools.batch)
    theta, pool = list(student.parameters()), list[tuple[float, Tensor]]()
    adam = Adam(theta, 1e-4, (0.5, 0.999))

    def apart(a: Tensor, b: Tensor) -> Tensor:
        return tools.cross_entropy(a, b) / math.log2(3)

    for x in stream:
        taught, (*skips, deepest) = teacher(x).detach(), student.encode(x)
        z, f = student.decode((*skips, deepest)), deepest.detach()
        pool += [(overlap_entropy(z.detach()[i : i + 1]), f[i : i + 1]) for i in range(images)]
        pool = sorted(pool, key=lambda row: row[0])[:40]
        found = [cosines(f[i : i + 1], [k for _, k in pool]).max(0) for i in range(images)]
        anchor = torch.cat([pool[best][1] for _, best in found])
        w = torch.stack([found[0 if shared_cosine else i][0] for i in range(images)])[:, None, None, None]
        std, mean = torch.std_mean(anchor, (1, 2, 3), keepdim=True)
        aligned = student.decode((*skips, ((1 - w) * deepest + w * anchor - mean) / std))
        to_teacher, difference = apart(z, taught), (entropies(aligned) - entropies(z)).abs().mean()
        adam.step(gradient(apart(aligned, z) + 5 * difference + to_teacher, theta))
        rate = to_teacher.item()
        with torch.no_grad():
            for name, slow in teacher.named_parameters():
                if name.startswith("layer"):
                    slow.copy_((1 - rate) * slow + rate * student.get_parameter(name))
        yield ours(x), student(x)
    yield from weights(ours.teacher, teacher)


def dltta(pooled: bool = True, **options: Any) -> Pairs:
    """The memory of 20 images is full after the fifth batch; with `pooled=False` keys and logits keep their size."""
    network, batches = case(batches=8)
    ours: Any = adapt(network, "dltta", **{"lr": 1e-2, **options})
    model, memory = plain_copy(network, tools.batch), list[tuple[Tensor, Tensor]]()
    adam = Adam(affine(model), 1e-2)
    small = partial(F.avg_pool2d, kernel_size=4) if pooled else lambda logits: logits

    def key(deepest: Tensor) -> Tensor:
        coarse = F.avg_pool2d(deepest, deepest.shape[-1] // 4)
        return torch.cat([deepest.mean((1, 2)), coarse.flatten()]) if pooled else deepest.flatten()

    for x in batches:
        features = model.encode(x)
        z, keys = model.decode(features), [key(deepest) for deepest in features[-1].detach()]
        D, rate = [], 1e-2
        for k, own in zip(keys, small(z.detach()), strict=True):
            if len(memory) >= 8:
                cos, best = cosines(k, [other for other, _ in memory]).topk(8)
                weighted = zip((cos / 0.2).softmax(0), best, strict=True)
                q, p = sum(w * memory[i][1] for w, i in weighted).softmax(0), (own / 4).softmax(0)
                D.append(((p * (p / q).log()).sum(0) + (q * (q / p).log()).sum(0)).mean().item())
        if D:
            rate *= min(max(math.exp(sum(D) / len(D)), 0.1), 10)
        adam.step(gradient(entropies(z).mean(), adam.parameters), rate)
        answer = model(x).detach()
        memory = [*memory, *zip(keys, small(answer), strict=True)][-20:]
        yield ours(x), answer
    yield from weights(ours.network, model)
