"""Learning to adapt by gradient: one inner step on BatchNorm's γ, β; a rate for each tensor is learned at source time.

An episode is a simulated hospital. The inner step follows a loss without labels from the source's weights; the outer
loss is supervised, after the step; its first-order gradient for a rate is −⟨∇L_sup(θ′), g_l⟩. A rate is never negative:
where a loss points the wrong way, its rate can only vanish. `agreement` says how often it points the right way, on
hospitals that took no part in the fit. An experiment (`experiments/learn_to_adapt.py`), not one of the methods.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.adapt import batchnorm
from ttdg.adapt.adapter import Images, Logits
from ttdg.adapt.affine import Affine, Rates
from ttdg.adapt.entropy import entropy
from ttdg.adapt.mixing import dice_loss, drawn_batch
from ttdg.adapt.universe_gradient import UniverseAdapter, universe_gradient
from ttdg.data import Arrays, Benchmark, normalise
from ttdg.data.shifts import simulate
from ttdg.errors import UserError, near_miss
from ttdg.prior import MorphologyPrior, maps_of

Inner = Callable[[Tensor, dict[str, Tensor]], Tensor]  # of logits and maps; no label can reach it

UNIVERSES = {
    "learned universe": "full",
    "random universe": "random-universe",
    "no universe": "no-universe",  # the source's own probabilities at the nodes
}
PLAIN: dict[str, Inner] = {
    "entropy": lambda logits, _: entropy(logits).mean(),
    "hard labels": lambda logits, _: F.cross_entropy(logits, logits.detach().argmax(1)),
}
VARIANTS = (*UNIVERSES, "entropy")
CEILING = "supervised"  # an inner loss that knows the labels: what the step could reach; source time only
START = 1e-3  # root mean square change of a tensor's values: the rate of universe-gradient's Adam
DRAW = 4  # hospitals simulated at once, which lend each other their colours


@dataclass(frozen=True)
class Agreement:
    """Of a loss's gradient with the supervised one, and the supervised loss before and after the learned step."""

    cosine: float  # the mean over episodes
    positive: float  # the share of episodes where it is above 0
    size: float  # of the gradient, as a multiple of the supervised one's; the median
    by_tensor: Mapping[str, float]  # mean cosine of each γ and β
    before: float
    after: float


@dataclass(frozen=True)
class Own:
    """BatchNorm's `Mix`, with the weight that `mixing.fit_mixing` gave each layer."""

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        if batchnorm.too_few(x):
            return batchnorm.EVAL(layer, x)
        var, mean = torch.var_mean(x.detach(), dim=(0, 2, 3))
        source, rho = batchnorm.running(layer), layer.own_rho
        mean, var = (torch.lerp(a, b, rho) for a, b in zip(source, (mean, var), strict=True))  # type: ignore[arg-type]
        return batchnorm.normalise(layer, x, mean, var)


MIX = batchnorm.Mix(0.1)


class LearnedStep:
    """An adapter: one step with fitted rates from the source's weights for each batch, the answer after it."""

    def __init__(
        self,
        network: nn.Module,
        prior: MorphologyPrior,
        rates: Rates,
        variant: str = VARIANTS[0],
        *,
        norm: batchnorm.Mode = MIX,
    ) -> None:
        self.network = prepared(network, norm)
        self.rates, self.theta = rates, Affine(self.network)
        self.objective = inner_losses(self.network, prior, (variant,))[variant]

    def __call__(self, images: Images) -> Logits:
        step = self.step(images)
        with torch.no_grad(), self.theta.moved(step):
            return self.network(images)

    def step(self, images: Images) -> Float[Tensor, " n"]:
        with torch.enable_grad():
            gradient = self.theta.gradient(self.objective(*maps_of(self.network, images)))
        return self.theta.step(gradient, self.rates)

    def reset(self) -> None:
        """Every batch ends where it began."""


def prepared(network: nn.Module, norm: batchnorm.Mode = MIX) -> nn.Module:
    """A frozen copy of the network under that norm."""
    network = copy.deepcopy(network).eval().requires_grad_(False)
    batchnorm.use(network, norm)
    return network


def inner_losses(network: nn.Module, prior: MorphologyPrior, variants: Sequence[str]) -> dict[str, Inner]:
    """The losses by name. The teacher is the answer at the source's weights, where every episode begins."""
    return {name: PLAIN[name] if name in PLAIN else _matching(network, prior, name) for name in variants}


def fit_rates(
    network: nn.Module,
    prior: MorphologyPrior,
    sites: Sequence[Arrays],
    benchmark: Benchmark,
    *,
    variants: Sequence[str] = VARIANTS,
    steps: int = 60,
    group: int = 4,
    lr: float = 0.1,
    normalised: bool = False,
    norm: batchnorm.Mode = MIX,
    seed: int = 0,
) -> dict[str, Rates]:
    """Rates of every variant on the same episodes; a gradient is measured in units of the first episode's, so that a
    batch with a small loss moves little, or, `normalised`, in its own. The network given is not touched."""
    network = prepared(network, norm)
    theta, units = Affine(network), dict.fromkeys(variants)
    losses = inner_losses(network, prior, [name for name in variants if name != CEILING])
    start = torch.full((len(variants), len(theta.sizes)), math.log(START), device=theta.owner.device)
    log_rates = start.to(theta.tensors[0].dtype).requires_grad_(True)
    optimiser = torch.optim.Adam([log_rates], lr)
    for images, labels in hospitals(sites, benchmark, steps, group, seed, theta.owner.device):
        gradients = _gradients(theta, losses, network, images, labels, variants)
        if not normalised and units[variants[0]] is None:
            units = {name: theta.size(gradients[name]) for name in variants}  # type: ignore[assignment]
        slopes = []
        for name, values in zip(variants, log_rates.detach().exp(), strict=True):
            step = theta.step(gradients[name], Rates(values, units[name]))
            slopes.append(slope(theta, network, step, images, labels))
        log_rates.grad = torch.stack(slopes)
        optimiser.step()
    fitted = log_rates.detach().exp()
    return {name: Rates(fitted[i], units[name]) for i, name in enumerate(variants)}


def slope(
    theta: Affine, network: nn.Module, step: Float[Tensor, " n"], images: Tensor, labels: Tensor
) -> Float[Tensor, " p"]:
    """∂L_sup(θ − step) / ∂ log rate, the inner gradient taken as a constant: −⟨∇L_sup(θ′), step⟩ of each tensor."""
    with torch.enable_grad(), theta.moved(step):
        gradient = theta.gradient(supervised(network(images), labels))
    return -theta.sums(gradient * step)


def agreement(
    network: nn.Module,
    prior: MorphologyPrior,
    sites: Sequence[Arrays],
    benchmark: Benchmark,
    rates: Mapping[str, Rates],
    *,
    episodes: int = 16,
    group: int = 4,
    norm: batchnorm.Mode = MIX,
    seed: int = 1,
) -> dict[str, Agreement]:
    """Of every variant in `rates`, at simulated hospitals of these sites: give images the fit has not seen."""
    network = prepared(network, norm)
    theta = Affine(network)
    losses = inner_losses(network, prior, [name for name in rates if name != CEILING])
    seen: dict[str, list[Tensor]] = {name: [] for name in rates}
    for images, labels in hospitals(sites, benchmark, episodes, group, seed, theta.owner.device):
        wanted = _gradients(theta, losses, network, images, labels, (*rates, CEILING))
        with torch.no_grad():
            before = supervised(network(images), labels)
        for name in rates:
            with torch.no_grad(), theta.moved(theta.step(wanted[name], rates[name])):
                after = supervised(network(images), labels)
            row = _compared(theta, wanted[name], wanted[CEILING])
            seen[name].append(torch.cat([row, torch.stack([before, after])]))
    return {name: _summary(theta, torch.stack(rows).cpu()) for name, rows in seen.items()}


def hospitals(
    sites: Sequence[Arrays], benchmark: Benchmark, count: int, group: int, seed: int, device: torch.device
) -> Iterator[tuple[Images, Tensor]]:
    """Batches of one site each under one full-strength shift, normalised as the network wants them, and labels."""
    generator = torch.Generator().manual_seed(seed)
    for at in range(0, count, DRAW):
        images, labels = simulate(*drawn_batch(sites, DRAW, group, generator, device), generator, group=group)
        images = normalise(images, benchmark.normalisation)
        yield from list(zip(images.split(group), labels.split(group), strict=True))[: count - at]


def supervised(logits: Logits, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels) + dice_loss(logits, labels)


def _matching(network: nn.Module, prior: MorphologyPrior, name: str) -> Inner:
    if name not in UNIVERSES:
        raise UserError(f"no inner loss {name!r}{near_miss(name, (*UNIVERSES, *PLAIN))}")
    adapter = universe_gradient(copy.deepcopy(network), prior.to_part(), variant=UNIVERSES[name])  # type: ignore[arg-type]
    assert isinstance(adapter, UniverseAdapter)
    return lambda logits, maps: adapter.matching_loss(logits, maps, logits.detach().softmax(1))


def _gradients(
    theta: Affine, losses: Mapping[str, Inner], network: nn.Module, images: Tensor, labels: Tensor,
    variants: Sequence[str],
) -> dict[str, Tensor]:  # fmt: skip
    """Every variant's gradient at the source's weights, from one forward pass."""
    with torch.enable_grad():
        logits, maps = maps_of(network, images)
        known = {name: losses[name](logits, maps) for name in variants if name != CEILING}
        if CEILING in variants:
            known[CEILING] = supervised(logits, labels)
        return {name: theta.gradient(loss) for name, loss in known.items()}


def _compared(theta: Affine, a: Tensor, b: Tensor) -> Float[Tensor, " k"]:
    """Cosine and relative size of the whole vectors, then the cosine of each tensor."""
    dot, aa, bb = (theta.sums(x * y) for x, y in ((a, b), (a, a), (b, b)))
    whole = torch.stack([dot.sum() / (aa.sum() * bb.sum()).sqrt(), (aa.sum() / bb.sum()).sqrt()])
    return torch.cat([whole, dot / (aa * bb).sqrt()]).nan_to_num()


def _summary(theta: Affine, rows: Float[Tensor, "e k"]) -> Agreement:
    cosine, size, before, after = rows[:, 0], rows[:, 1], rows[:, -2], rows[:, -1]
    by_tensor = rows[:, 2:-2].mean(0).tolist()
    return Agreement(
        float(cosine.mean()), float((cosine > 0).double().mean()), float(size.median()),
        dict(zip(theta.names, by_tensor, strict=True)), float(before.mean()), float(after.mean()),
    )  # fmt: skip
