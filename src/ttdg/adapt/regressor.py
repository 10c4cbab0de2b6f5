"""A small ensemble that predicts Dice from signals, with an interval: the judge's arithmetic, without images.

Members are a few multi-layer perceptrons over standardised signals, run as one batched product. Each predicts the Dice
of every region and how far off it expects to be; the interval is that expectation, scaled on images no member saw.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

FAR = 4.0  # standard deviations beyond which a signal says no more
HIDDEN = 48


@dataclass(frozen=True)
class Prediction:
    dice: Float[Tensor, "b k"]  # mean over regions
    half_width: Float[Tensor, "b k"]  # of the 80 % interval
    members: Float[Tensor, "e b k"]  # what each member says, for how far they agree


class Regressor(nn.Module):
    """`members` networks f → 48 → 48 → regions + 1, side by side."""

    def __init__(self, inputs: int, regions: int, members: int = 6, dropout: float = 0.1) -> None:
        super().__init__()
        sizes = [inputs, HIDDEN, HIDDEN, regions + 1]
        self.weights = nn.ParameterList(
            torch.randn(members, a, b) * (2 / a) ** 0.5 for a, b in pairwise(sizes)
        )
        self.biases = nn.ParameterList(torch.zeros(members, 1, b) for b in sizes[1:])
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("deviation", torch.ones(inputs))
        self.register_buffer("widening", torch.ones(()))
        self.dropout = nn.Dropout(dropout)
        self.mean: Tensor
        self.deviation: Tensor
        self.widening: Tensor

    @torch.no_grad()
    def start_at(self, dice: Float[Tensor, " r"]) -> None:
        """Begin at the mean Dice, some 0.1 off: from 0, half of a short fit is spent on getting there."""
        self.weights[-1].mul_(0.1)
        self.biases[-1][..., :-1] = dice
        self.biases[-1][..., -1] = -2.0

    def forward(self, x: Float[Tensor, "b k f"]) -> Float[Tensor, "e b k o"]:
        h = ((x - self.mean) / self.deviation).clamp(-FAR, FAR).flatten(0, 1)[None]
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = h @ weight + bias
            h = self.dropout(h.relu()) if layer < len(self.weights) - 1 else h
        return h.unflatten(1, x.shape[:2])

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "b k f"]) -> Prediction:
        out = self.eval()(x)
        dice, scale = out[..., :-1].mean(-1), out[..., -1]
        width = nn.functional.softplus(scale).mean(0) + dice.std(0)
        return Prediction(dice.mean(0).clamp(0, 1), self.widening * width, dice)


def features(found: Mapping[str, Float[Tensor, "k b"]], names: Sequence[str]) -> Float[Tensor, "b k f"]:
    """The named signals, each also as a difference to the first candidate's, and which candidate it is."""
    x = torch.stack([found[name] for name in names], -1).movedim(0, 1).nan_to_num(0.0, 10.0, -10.0)
    which = torch.eye(x.shape[1], device=x.device).expand(len(x), -1, -1)
    return torch.cat([x, x - x[:, :1], which], -1)


def fit_regressor(
    x: Float[Tensor, "b k f"],
    dice: Float[Tensor, "b k r"],
    *,
    members: int = 6,
    steps: int = 500,
    lr: float = 3e-3,
    ranking: float = 4.0,
    coverage: float = 0.8,
    seed: int = 0,
) -> Regressor:
    """Squared error of Dice, plus `ranking` × that of its difference between the candidates of one image, on four
    fifths of the images; the rest widen the interval until it covers `coverage` of them."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator).to(x.device)
    fit, rest = order[len(order) // 5 :], order[: len(order) // 5]
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.manual_seed(seed)  # of the first weights and of dropout
        model = Regressor(x.shape[2], dice.shape[2], members).to(x.device).train()
        model.mean.copy_(x[fit].mean((0, 1)))
        model.deviation.copy_(x[fit].std((0, 1)) + 1e-3)
        model.start_at(dice[fit].mean((0, 1)))
        optimiser = torch.optim.AdamW(model.parameters(), lr, weight_decay=1e-3)
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = lr * (1 - step / steps)
            rows = fit[torch.randint(len(fit), (min(96, len(fit)),), generator=generator).to(x.device)]
            loss = _loss(model(x[rows]), dice[rows], ranking)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    if len(rest):
        predicted = model.predict(x[rest])
        missed = (predicted.dice - dice[rest].mean(2)).abs() / predicted.half_width
        model.widening.copy_(missed.flatten().quantile(coverage))
    return model.requires_grad_(False).eval()


def _loss(out: Float[Tensor, "e b k o"], dice: Float[Tensor, "b k r"], ranking: float) -> Tensor:
    error = out[..., :-1] - dice
    centred = error - error.mean(2, keepdim=True)
    off = error.mean(-1).detach().abs()
    scale = (nn.functional.softplus(out[..., -1]) - off).square()
    return (error.square() + ranking * centred.square()).mean() + scale.mean()
