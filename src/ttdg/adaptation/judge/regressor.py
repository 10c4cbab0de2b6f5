"""Dice predicted from signals, with an interval: the judge's arithmetic, without images.

Several ridge regressions over standardised signals, each fitted in closed form to another draw of the simulated
hospitals. What they say of a hospital outside their draw tells how far off to expect them. Lines are enough:
networks of two hidden layers chose no better at unseen hospitals, and drew more from a random universe
(docs/decisions.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

FAR = 3.0  # standard deviations beyond which a signal says no more
RIDGE = 0.1  # an image's worth of pull towards 0
FLOOR = 0.01  # no prediction is expected to be closer than this
COVERED = (
    0.9  # of what is said of simulated hospitals: real ones lie further off, and 80 % of theirs is meant
)


@dataclass(frozen=True)
class Prediction:
    dice: Float[Tensor, "b k"]  # mean over regions
    half_width: Float[Tensor, "b k"]  # of the 80 % interval
    members: Float[Tensor, "e b k"]  # what each member says, for how far they agree


@dataclass(frozen=True)
class Regressor:
    mean: Float[Tensor, " f"]  # of the signals
    deviation: Float[Tensor, " f"]
    usual: Float[Tensor, " r"]  # Dice of each region, from which the members depart
    weights: Float[Tensor, "e f r"]
    doubt: Float[Tensor, " g"]  # of the absolute error: a weight for each signal, and the usual one last
    widening: Float[Tensor, ""]

    def predict(self, x: Float[Tensor, "b k f"]) -> Prediction:
        z = standard(x, self.mean, self.deviation)
        said = (torch.einsum("bkf,efr->ebkr", z, self.weights) + self.usual).mean(3)
        off = (z @ self.doubt[:-1] + self.doubt[-1]).clamp(min=FLOOR)
        return Prediction(said.mean(0).clamp(0, 1), self.widening * (off + said.std(0)), said)

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to(self, device: torch.device) -> "Regressor":
        return Regressor(**{name: value.to(device) for name, value in self.tensors().items()})


def features(found: Mapping[str, Float[Tensor, "k b"]], names: Sequence[str]) -> Float[Tensor, "b k f"]:
    """The named signals, and which candidate it is."""
    x = torch.stack([found[name] for name in names], -1).movedim(0, 1).nan_to_num(0.0, 10.0, -10.0)
    which = torch.eye(x.shape[1], device=x.device).expand(len(x), -1, -1)
    return torch.cat([x, which], -1)


def standard(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return ((x - mean) / deviation).clamp(-FAR, FAR)


@torch.no_grad()
def fit_regressor(
    x: Float[Tensor, "b k f"],
    dice: Float[Tensor, "b k r"],
    hospital: Int[Tensor, " b"],
    *,
    members: int = 8,
    ranking: float = 4.0,
    coverage: float = COVERED,
    seed: int = 0,
) -> Regressor:
    """Least squares of Dice, plus `ranking` × that of its difference between the candidates of one image. `hospital`
    says which images came together: draws are of hospitals. The interval is widened until it covers `coverage` of
    what was said of those outside a member's draw."""
    mean, deviation, usual = x.mean((0, 1)), x.std((0, 1)) + 1e-3, dice.mean((0, 1))
    z, y = standard(x, mean, deviation).double(), (dice - usual).double()
    generator, n = torch.Generator().manual_seed(seed), len(x)
    count = int(hospital.max()) + 1
    draws = torch.randint(count, (members, count), generator=generator).to(x.device)
    times = torch.zeros_like(draws).scatter_add(1, draws, torch.ones_like(draws))[:, hospital]  # (e b)
    weights = torch.stack([ridge(*_ranked(z, y, ranking, each), n) for each in times.double()])
    unseen = (times == 0).double()
    said = torch.einsum("bkf,efr->ebkr", z, weights).mean(3)
    there = unseen.sum(0) > 0
    outside = (said * unseen[..., None]).sum(0) / unseen.sum(0).clamp(min=1)[:, None]
    off = (outside - y.mean(2)).abs()[there]
    usual_off = off.mean() if len(off) else z.new_tensor(0.1)
    slope = ridge(z[there].flatten(0, 1), (off - usual_off).flatten()[:, None], n)[:, 0]
    fitted = Regressor(
        mean, deviation, usual, weights.to(x), torch.cat([slope, usual_off[None]]).to(x), x.new_ones(())
    )
    if not len(off):  # too few hospitals to leave one out
        return fitted
    widening = (off / fitted.predict(x[there]).half_width).flatten().quantile(coverage)
    return Regressor(**{**fitted.tensors(), "widening": widening.to(x)})


def ridge(z: Float[Tensor, "n f"], y: Float[Tensor, "n r"], images: int) -> Float[Tensor, "f r"]:
    """argmin ‖zw − y‖² + RIDGE · images · ‖w‖²"""
    pull = RIDGE * images * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    return torch.linalg.solve(z.mT @ z + pull, z.mT @ y)


def _ranked(z: Tensor, y: Tensor, ranking: float, times: Tensor) -> tuple[Tensor, Tensor]:
    """Every candidate's row, and √ranking × its difference to the mean candidate of its image, √times each."""
    often = times.sqrt()[:, None, None]
    a, b = (
        torch.cat([often * v, ranking**0.5 * often * (v - v.mean(1, keepdim=True))]).flatten(0, 1)
        for v in (z, y)
    )
    return a, b
