"""The affinity of neighbouring cells in CPR: its learned features, its loss, and the random walk along it."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.networks import batchnorm

REACH = 3  # cells in each direction; pairs are nearer than REACH + 1
SIDE = 2 * REACH + 1
OFFSETS = tuple(  # half of the neighbours; the other half are the same pairs
    (dy, dx)
    for dy in range(SIDE - REACH)
    for dx in range(-REACH, REACH + 1)
    if (dy > 0 or dx > 0) and dy**2 + dx**2 < (REACH + 1) ** 2
)
EPS = 1e-5
GAIN = 4.0  # of the initialisation

Pairs = Float[Tensor, "n k o y x"]  # one value for each offset and each cell with all of its neighbours
Grid = Float[Tensor, "n k h w"]


class AffinityHead(nn.Module):
    """For each structure a 1×1 convolution without bias, BatchNorm and ReLU."""

    def __init__(self, channels: int, structures: int, generator: torch.Generator) -> None:
        super().__init__()
        self.structures = structures
        self.convolution = nn.Conv2d(channels, structures * channels, 1, bias=False)
        bound = GAIN * (3 / channels) ** 0.5  # Xavier, with as many inputs as outputs for each structure
        self.convolution.weight.data.uniform_(-bound, bound, generator=generator)
        self.norm = nn.BatchNorm2d(structures * channels)
        batchnorm.use(self, batchnorm.EVAL)

    def forward(self, cells: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k c h w"]:
        """Features of each structure."""
        return F.relu(self.norm(self.convolution(cells))).unflatten(1, (self.structures, -1))


def _inner(height: int, width: int) -> tuple[int, int]:
    """Size of the region of cells that have all neighbours of `OFFSETS`."""
    return max(height - REACH, 0), max(width - 2 * REACH, 0)


def neighbours(maps: Float[Tensor, "*n h w"], dy: int, dx: int) -> Float[Tensor, "*n y x"]:
    """The values at an offset from each cell of the inner region; offset (0, 0) gives the cells themselves."""
    y, x = _inner(*maps.shape[-2:])
    return maps[..., dy : dy + y, REACH + dx : REACH + dx + x]


def pair_distances(features: Float[Tensor, "n k c h w"]) -> Pairs:
    """Mean absolute difference of the features of each pair of cells; the affinity is exp(−distance)."""
    here = neighbours(features, 0, 0)
    return torch.stack([(here - neighbours(features, *o)).abs().mean(2) for o in OFFSETS], 2)


def affinity_loss(pairs: Pairs, labels: Grid, known: Grid) -> Float[Tensor, ""]:
    """The loss of the affinity, averaged over structures.

    ¼ of the mean −log a of pairs inside the background, ¼ inside the structure, ½ of the mean −log(1−a) across. Pairs
    with a cell that is not known do not count.
    """
    there = [torch.stack([neighbours(x, *o) for o in OFFSETS], 2) for x in (labels, known)]
    one, sure = (neighbours(x, 0, 0)[:, :, None] for x in (labels, known))
    both = sure * there[1]
    other = there[0]
    affinity = torch.exp(-pairs)
    near, far = -torch.log(affinity + EPS), -torch.log(1 - affinity + EPS)

    def mean(values: Pairs, chosen: Pairs) -> Float[Tensor, " k"]:
        chosen = chosen * both
        return (values * chosen).sum((0, 2, 3, 4)) / (chosen.sum((0, 2, 3, 4)) + EPS)

    inside, outside = mean(near, one * other), mean(near, (1 - one) * (1 - other))
    across = mean(far, one * (1 - other) + (1 - one) * other)
    return (outside / 4 + inside / 4 + across / 2).mean()


def walk_weights(pairs: Pairs, height: int, width: int, sharpness: float) -> Float[Tensor, "n k s h w"]:
    """Affinities to the power `sharpness` of each cell with the square around it; 1 with itself, 0 beyond the reach."""
    y, x = _inner(height, width)
    weights = pairs.new_zeros(*pairs.shape[:2], SIDE * SIDE, height, width)
    weights[:, :, REACH * SIDE + REACH] = 1
    affinities = torch.exp(-sharpness * pairs)
    for number, (dy, dx) in enumerate(OFFSETS):
        there, back = (REACH + dy) * SIDE + REACH + dx, (REACH - dy) * SIDE + REACH - dx
        weights[:, :, there, :y, REACH : REACH + x] = affinities[:, :, number]
        weights[:, :, back, dy : dy + y, REACH + dx : REACH + dx + x] = affinities[:, :, number]
    return weights


def random_walk(values: Grid, weights: Float[Tensor, "n k s h w"], steps: int) -> Grid:
    """Replace each value `steps` times by the weighted mean of its neighbourhood.

    This is values·Tˢ as a row vector, where T is the affinity matrix divided by its column sums.
    """
    total = weights.sum(2)
    for _ in range(steps):
        around = F.unfold(values.flatten(0, 1)[:, None], SIDE, padding=REACH)
        values = (weights * around.view(weights.shape)).sum(2) / total
    return values
