"""References of `fidelity.py` for methods with parts from source time: DeY-Net and ITTA. Each yields (ours, reference).

The parts have random weights; ours stores them in single precision. The draws are shared.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fidelity_tools as tools
from fidelity_tools import SIZE, Adam, Pairs, affine, case, gradient, plain_copy, use, weights
from ttdg import adaptation
from ttdg.networks.heads.consistency import ElementWiseNet
from ttdg.networks.heads.denoiser import Denoiser
from ttdg.types import Part

WIDTHS = [6, 8, 12]  # channels of the network's encoder
Source = tuple[Any, list[Tensor]]


def with_part(name: str, part: Part, dtype: torch.dtype) -> Source:
    """A model with a part, and a stream; the labels of the network exclude each other."""
    network, batches = case(dtype)
    return SimpleNamespace(network=network, parts={name: part}), batches


def blind_spots(x: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise2Void: pixels at ⌊0.1·h·w⌋ places become a neighbour of their 5 × 5 window; and the mask of the places."""
    places = torch.randint(SIZE * SIZE, (len(x), int(0.1 * SIZE * SIZE)), generator=draw)
    dy, dx = torch.randint(-2, 3, (2, len(x), SIZE, SIZE), generator=draw)
    noisy, mask = x.clone(), torch.zeros(len(x), 1, SIZE, SIZE)
    for image, row in enumerate(places.tolist()):
        for y, z in (divmod(place, SIZE) for place in row):
            from_y, from_z = (y + int(dy[image, y, z])) % SIZE, (z + int(dx[image, y, z])) % SIZE
            noisy[image, :, y, z] = x[image, :, from_y, from_z]
            mask[image, :, y, z] = 1
    return noisy, mask


def deynet(**options: Any) -> Pairs:
    """One step on each batch, and the mean over two corrupted copies; images have a mean of ½ and a deviation of ¼."""
    torch.manual_seed(1)
    part = Denoiser(WIDTHS, 3).to_part([0.5] * 3, [0.25] * 3)
    source, batches = with_part("deynet", part, torch.float32)
    ours: Any = adaptation.adapt(source, "deynet", **{"lr": 1e-2, **options})
    model = plain_copy(source.network, tools.source)
    denoiser = plain_copy(Denoiser.from_part(part, torch.device("cpu")), tools.train(0.1))
    encoder = [p for name, child in model.named_children() if name.startswith("layer") for p in affine(child)]
    adam, draw = Adam([*encoder, *affine(denoiser)], 1e-2, (0.9, 0.99)), torch.Generator().manual_seed(0)
    for x in batches:
        use(model, tools.train(0.1))
        noisy, mask = blind_spots(x, draw)
        features = model.encode(noisy)
        model.decode(features)  # moves the statistics of the decoder
        loss = (mask * (denoiser(features, x) - (0.5 + 0.25 * x))).abs().mean()
        adam.step(gradient(loss, adam.parameters))
        use(model, tools.source)
        p = torch.stack([model(blind_spots(x, draw)[0]).softmax(1) for _ in range(2)]).mean(0)
        yield ours(x).softmax(1), p
    yield from weights(ours.network, model)
    yield from weights(ours.denoiser, denoiser)


class Affine(nn.Module):
    """ITTA's net of element-wise layers w ⊙ x + b, with ReLU between them."""

    def __init__(self, shape: tuple[int, ...], layers: int) -> None:
        super().__init__()
        self.w = nn.ParameterList(torch.ones(shape, dtype=torch.float64) for _ in range(layers))
        self.b = nn.ParameterList(torch.zeros(shape, dtype=torch.float64) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        *first, last = zip(self.w, self.b, strict=True)
        for w, b in first:
            x = (w * x + b).relu()
        return last[0] * x + last[1]


def restyled(x: Tensor, share: Tensor) -> Tensor:
    """MixStyle: each image takes a part of the style of the image before it, and the first of the last."""
    mean = x.mean((2, 3), keepdim=True).detach()
    std = (x.var((2, 3), keepdim=True) + 1e-6).sqrt().detach()
    before = [len(x) - 1, *range(len(x) - 1)]
    other_mean, other_std = mean[before], std[before]
    plain = (x - mean) / std
    return plain * (share * std + (1 - share) * other_std) + share * mean + (1 - share) * other_mean


def itta(mixed_first: bool = True, **options: Any) -> Pairs:
    """With nets that have a value for each position; `mixed_first=False` mixes the styles of the mapped features.

    The encoder has softplus in place of ReLU. Else the features that are 0 would lie at the corner of the ReLU of a
    mapping net, and rounding would decide about their gradient.
    """
    torch.manual_seed(1)
    judge = ElementWiseNet((12,), 10)
    judge.weight.data.uniform_(0.8, 1.2)
    judge.bias.data.uniform_(0.1, 0.3)  # few units are off, so that gradients are not rounding error
    source, batches = with_part("itta", judge.to_part(), torch.float64)
    for stage in (source.network.layer0, source.network.layer1, source.network.layer4):
        stage[2] = nn.Softplus()
    ours: Any = adaptation.adapt(source, "itta", **{"lr": 1e-3, "mapping": "element", **options})
    model, rng = plain_copy(source.network, tools.source), np.random.default_rng(0)
    first, second = Affine((8, 8, 8), 5), Affine((12, 4, 4), 5)
    measure = Affine((12,), 10)
    for own, given in zip((*measure.w, *measure.b), (*judge.weight, *judge.bias), strict=True):
        own.data.copy_(given)
    adam = Adam([*first.parameters(), *second.parameters()], 1e-3)

    def mapped(x: Tensor, styled: int | None = None, share: Tensor | None = None) -> tuple[Tensor, ...]:
        """Features of the encoder with mapping nets, with another style at one level."""
        levels = [model.layer0(x)]
        for number, (stage, net) in enumerate(((model.layer1, first), (model.layer4, second)), start=1):
            h = stage(levels[-1])
            if styled != number:
                h = net(h)
            elif mixed_first:
                h = net(restyled(h, share))
            else:
                h = restyled(net(h), share)
            levels.append(h)
        return tuple(levels)

    for x in batches:
        level = 2 if rng.random() < 0.5 else 1
        share = torch.from_numpy(rng.beta(0.1, 0.1, (len(x), 1, 1, 1)))
        z, other = (mapped(x, *style)[-1].mean((2, 3)) for style in ((), (level, share)))
        adam.step(gradient(0.1 * (measure(other - z) ** 2).mean(), adam.parameters))
        yield ours(x), model.decode(mapped(x))
    for net, reference in zip(ours.maps, (first, second), strict=True):
        yield net.weight, torch.stack(list(reference.w))
        yield net.bias, torch.stack(list(reference.b))
