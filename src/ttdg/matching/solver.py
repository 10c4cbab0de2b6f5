"""One iteration for HiPPI and graduated assignment: U ← project(V(U))."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.matching.nonblocking import NonBlockingAll
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
    """Where the iteration came to rest. How well it did is computed for those who ask."""

    matching: Float[Tensor, "m n d"]  # 𝐔
    before: Float[Tensor, "m n d"] | float  # 𝐔 one step earlier; ∞ if there was none
    mask: Bool[Tensor, "m n"]
    iterations: int  # over all temperatures
    measure: Callable[[Tensor], Tensor]

    @property
    def residual(self) -> Float[Tensor, " m"]:
        """‖U_iᵗ − U_iᵗ⁻¹‖_F / √n_i of the last step."""
        return _change(self.matching, self.before) / _root_sizes(self.mask)

    @property
    def objective(self) -> Float[Tensor, ""]:
        """At the matching."""
        with torch.set_grad_enabled(self.matching.requires_grad and torch.is_grad_enabled()):
            return self.measure(self.matching)


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
    before: Tensor | float = math.inf
    iterations, rest = 0, tolerance * _root_sizes(mask) if tolerance > 0 else None
    with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
        for temperature in [tau] if isinstance(tau, int | float) else tau:
            at_rest = NonBlockingAll()
            for step in range(1, max_iterations + 1):
                before, U = U, project(direction(U), mask, tau=temperature)
                iterations += 1
                if rest is not None and step % pace == 0 and at_rest(_change(U, before) <= rest):
                    break
    return Solution(U, before, mask, iterations, objective or (lambda U: (U * direction(U)).sum()))


def annealing(start: float, stop: float, factor: float = 0.5) -> tuple[float, ...]:
    """start, start·factor, … down to the last temperature that is not below stop."""
    steps = math.floor(math.log(stop / start) / math.log(factor) + 1e-9)
    return tuple(start * factor**step for step in range(steps + 1))


def _change(U: Tensor, before: Tensor | float) -> Tensor:
    return torch.linalg.vector_norm(U - before, dim=(1, 2))


def _root_sizes(mask: Tensor) -> Tensor:
    """√n_i; 1 for an empty graph."""
    return mask.sum(1).clamp(min=1).sqrt()
