"""One iteration for HiPPI and graduated assignment: U ← project(V(U))."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.matching.lagged import Lagged
from ttdg.matching.universe import assign

Direction = Callable[[Float[Tensor, "m n d"]], Float[Tensor, "m n d"]]
"""V(U), e.g. `lambda U: qap_direction(edges, affinity, U)`."""


@runtime_checkable
class Projection(Protocol):
    def __call__(
        self, scores: Float[Tensor, "m n d"], mask: Bool[Tensor, "m n"], /, *, tau: float
    ) -> Float[Tensor, "m n d"]: ...


@dataclass(frozen=True)
class Solution:
    matching: Float[Tensor, "m n d"]  # 𝐔
    iterations: int  # over all temperatures
    residual: Float[Tensor, " m"]  # ‖U_iᵗ − U_iᵗ⁻¹‖_F / √n_i of the last step
    objective: Float[Tensor, ""]  # at the matching


def solve(
    direction: Direction,
    U: Float[Tensor, "m n d"],
    mask: Bool[Tensor, "m n"],
    *,
    tau: float | Sequence[float] = 0.05,
    tolerance: float = 1e-4,
    max_iterations: int = 50,
    project: Projection = assign,
    objective: Callable[[Tensor], Tensor] | None = None,
    differentiable: bool = False,
) -> Solution:
    """Iterate to rest at each temperature of `tau` in turn, at most `max_iterations` times each.

    At rest (Eq. 8) means ‖U_iᵗ − U_iᵗ⁻¹‖_F ≤ θ √n_i for every graph: relative to the graph's size, since an
    absolute θ = 10⁻⁵ lies under the rounding noise of 100 nodes. `tolerance=0` runs `max_iterations` without
    looking. A GPU is asked every fifth step and answers five steps later, so that it is never waited for.
    `objective` defaults to ⟨U, V(U)⟩, which is Eq. 6 itself for `edge_direction`.
    """
    pace = 1 if U.is_cpu else 5
    iterations, before = 0, U.new_full((), math.inf)
    with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
        for temperature in [tau] if isinstance(tau, int | float) else tau:
            at_rest = Lagged()
            for step in range(1, max_iterations + 1):
                before, U = U, project(direction(U), mask, tau=temperature)
                iterations += 1
                ask = tolerance > 0 and step % pace == 0
                if ask and at_rest((_residual(U, before, mask) <= tolerance).all()):
                    break
        value = (U * direction(U)).sum() if objective is None else objective(U)
    return Solution(U, iterations, _residual(U, before, mask), value)


def annealing(start: float, stop: float, factor: float = 0.5) -> tuple[float, ...]:
    """start, start·factor, … down to the last temperature that is not below stop."""
    steps = math.floor(math.log(stop / start) / math.log(factor) + 1e-9)
    return tuple(start * factor**step for step in range(steps + 1))


def _residual(U: Tensor, before: Tensor, mask: Tensor) -> Tensor:
    return torch.linalg.vector_norm(U - before, dim=(1, 2)) / mask.sum(1).clamp(min=1).sqrt()
