"""The regressor: predicts the Dice of every candidate from its signals, with an 80 % interval.

It is an ensemble of ridge regressions over standardised signals. Each member is fitted in closed form on a bootstrap
sample of the simulated hospitals. The errors of the members at hospitals outside their sample give the width of the
interval. Where structures have a steady size, sites differ more in their annotation than simulated hospitals do, and
no image shows it. The standard deviation of the error of a whole site is therefore added there (`BETWEEN_SITES`).
Linear models are enough: networks with two hidden layers chose no better at unseen hospitals, and gained more from a
random universe (docs/decisions.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ttdg.errors import UserError
from ttdg.safety.review import COVERED
from ttdg.types import Part

CLIP = 3.0  # standardised signals are clipped to ±CLIP
RIDGE = 0.1  # penalty on squared weights, for each image
MIN_ERROR = 0.01  # lower bound of the predicted absolute error
COVERAGE = (
    0.9  # coverage at simulated hospitals; errors at real hospitals are larger, and 80 % is intended there
)
BETWEEN_SITES = {  # standard deviation between sites of the error of the mean expected Dice, by kind of anatomy
    # measured where one source site is left out (docs/measurements/learning.md, "The expected Dice at a new site")
    "steady": 0.1,
}


@dataclass(frozen=True)
class Prediction:
    """Predicted Dice of `k` candidates for `b` images, by `e` ensemble members."""

    dice: Float[Tensor, "b k"]  # mean over regions and members
    half_width: Float[Tensor, "b k"]  # half the width of the 80 % interval
    members: Float[Tensor, "e b k"]  # prediction of each member, mean over regions


@dataclass(frozen=True)
class Regressor:
    """A fitted ensemble. The names of the fields are also the names of the tensors in the saved part."""

    mean: Float[Tensor, " f"]  # of each feature
    deviation: Float[Tensor, " f"]  # standard deviation of each feature
    usual: Float[Tensor, " r"]  # mean Dice of each region; the members predict the difference from it
    weights: Float[Tensor, "e f r"]
    doubt: Float[Tensor, " g"]  # linear model of the absolute error: f weights, then the intercept
    widening: Float[Tensor, ""]  # factor on the half-width that reaches the intended coverage
    between: float = 0.0  # standard deviation of the error of a whole site; not a tensor of the part

    def predict(self, x: Float[Tensor, "b k f"]) -> Prediction:
        """Predict Dice from the features of `feature_matrix`."""
        z = standardise(x, self.mean, self.deviation)
        members = (torch.einsum("bkf,efr->ebkr", z, self.weights) + self.usual).mean(3)
        error = (z @ self.doubt[:-1] + self.doubt[-1]).clamp(min=MIN_ERROR)
        within = self.widening * (error + members.std(0))
        half_width = torch.hypot(within, torch.full_like(within, COVERED * self.between))
        return Prediction(members.mean(0).clamp(0, 1), half_width, members)

    def tensors(self) -> dict[str, Tensor]:
        """The fitted tensors by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "between"}

    def to(self, device: torch.device) -> "Regressor":
        """A copy on `device`."""
        moved = {name: value.to(device) for name, value in self.tensors().items()}
        return Regressor(**moved, between=self.between)

    @classmethod
    def from_part(cls, part: Part, prefix: str) -> "Regressor":
        """The regressor whose tensors in the part "judge" begin with `prefix`, for the anatomy of the source."""
        tensors = {n.removeprefix(prefix): x for n, x in part.tensors.items() if n.startswith(prefix)}
        kind = part.settings.get("learning", {}).get("anatomy")
        return cls(**tensors, between=BETWEEN_SITES.get(kind, 0.0))


def feature_matrix(
    signals: Mapping[str, Float[Tensor, "k b"]], names: Sequence[str]
) -> Float[Tensor, "b k f"]:
    """Features of the regressor: the named signals, then a one-hot code of the candidate."""
    if unknown := [name for name in names if name not in signals]:
        raise UserError(f"the judge was fitted with other signals ({unknown[0]}); fit the part 'judge' again")
    x = torch.stack([signals[name] for name in names], -1).movedim(0, 1).nan_to_num(0.0, 10.0, -10.0)
    candidate = torch.eye(x.shape[1], device=x.device).expand(len(x), -1, -1)
    return torch.cat([x, candidate], -1)


def standardise(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Features with mean 0 and standard deviation 1, clipped to ±CLIP."""
    return ((x - mean) / deviation).clamp(-CLIP, CLIP)


@torch.no_grad()
def fit_regressor(
    x: Float[Tensor, "b k f"],
    dice: Float[Tensor, "b k r"],
    hospital: Int[Tensor, " b"],
    *,
    members: int = 8,
    ranking: float = 4.0,
    coverage: float = COVERAGE,
    seed: int = 0,
) -> Regressor:
    """Fit the ensemble and its intervals.

    The loss is the squared error of Dice, plus `ranking` times the squared error of its deviation from the mean over
    the candidates of the same image.

    Args:
        x: features of every image and candidate.
        dice: the true Dice of every image, candidate and region.
        hospital: index of the simulated hospital of each image. Bootstrap samples are drawn over hospitals.
        members: size of the ensemble.
        ranking: weight of the second term of the loss.
        coverage: share of out-of-sample errors that the intervals must cover.
        seed: seed of the bootstrap samples.
    """
    mean, deviation, usual = x.mean((0, 1)), x.std((0, 1)) + 1e-3, dice.mean((0, 1))
    z, y = standardise(x, mean, deviation).double(), (dice - usual).double()
    generator, n = torch.Generator().manual_seed(seed), len(x)
    hospitals = int(hospital.max()) + 1
    draws = torch.randint(hospitals, (members, hospitals), generator=generator).to(x.device)
    times = torch.zeros_like(draws).scatter_add(1, draws, torch.ones_like(draws))[:, hospital]  # (e b)
    weights = torch.stack([ridge(*_weighted_rows(z, y, ranking, t), n) for t in times.double()])
    out_of_sample = (times == 0).double()
    predicted = torch.einsum("bkf,efr->ebkr", z, weights).mean(3)
    usable = out_of_sample.sum(0) > 0  # images outside the sample of at least one member
    outside = (predicted * out_of_sample[..., None]).sum(0) / out_of_sample.sum(0).clamp(min=1)[:, None]
    error = (outside - y.mean(2)).abs()[usable]
    mean_error = error.mean() if len(error) else z.new_tensor(0.1)
    slope = ridge(z[usable].flatten(0, 1), (error - mean_error).flatten()[:, None], n)[:, 0]
    fitted = Regressor(
        mean, deviation, usual, weights.to(x), torch.cat([slope, mean_error[None]]).to(x), x.new_ones(())
    )
    if not len(error):  # too few hospitals: every member has seen all of them
        return fitted
    widening = (error / fitted.predict(x[usable]).half_width).flatten().quantile(coverage)
    return replace(fitted, widening=widening.to(x))


def ridge(z: Float[Tensor, "n f"], y: Float[Tensor, "n r"], images: int) -> Float[Tensor, "f r"]:
    """The minimiser w of ‖zw − y‖² + RIDGE · images · ‖w‖²."""
    penalty = RIDGE * images * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    return torch.linalg.solve(z.mT @ z + penalty, z.mT @ y)


def _weighted_rows(z: Tensor, y: Tensor, ranking: float, times: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the least-squares problem of one member, for features and targets.

    There are two rows for every candidate: its values, and √ranking × their deviation from the mean candidate of the
    image. Both are scaled by √times, where `times` counts how often the image is in the member's sample.
    """
    scale = times.sqrt()[:, None, None]
    a, b = (
        torch.cat([scale * v, ranking**0.5 * scale * (v - v.mean(1, keepdim=True))]).flatten(0, 1)
        for v in (z, y)
    )
    return a, b
