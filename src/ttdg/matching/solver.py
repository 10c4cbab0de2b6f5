"""The iteration U ← project(V(U)), shared by HiPPI (Algorithm 2) and graduated assignment (Algorithm 3)."""

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
"""The update direction V as a function of U, e.g. `lambda U: qap_direction(edges, affinity, U)`."""


@runtime_checkable
class Projection(Protocol):
    """A map from scores V to matchings U, such as `assign`."""

    def __call__(
        self, scores: Float[Tensor, "m n d"], mask: Bool[Tensor, "m n"], /, *, tau: float
    ) -> Float[Tensor, "m n d"]:
        """The matching of these scores at temperature `tau`."""
        ...


@dataclass(frozen=True)
class Solution:
    """Result of `solve`. `residual` and `objective` are computed on access."""

    matching: Float[Tensor, "m n d"]  # 𝐔
    before: Float[Tensor, "m n d"] | float  # 𝐔 one iteration earlier; ∞ if there was no iteration
    mask: Bool[Tensor, "m n"]
    iterations: int  # summed over all temperatures
    measure: Callable[[Tensor], Tensor]  # the objective as a function of U

    @property
    def residual(self) -> Float[Tensor, " m"]:
        """‖U_iᵗ − U_iᵗ⁻¹‖_F / √n_i of the last iteration."""
        return _change(self.matching, self.before) / _root_sizes(self.mask)

    @property
    def objective(self) -> Float[Tensor, ""]:
        """Value of the objective at `matching`."""
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
    """Iterate U ← project(V(U)) to convergence at each temperature of `tau` in turn.

    Convergence (Eq. 8) means ‖U_iᵗ − U_iᵗ⁻¹‖_F ≤ θ √n_i for every graph i. The bound is relative to the graph's size
    because the printed absolute θ = 10⁻⁵ is below the float32 rounding noise of 100 nodes.

    Args:
        direction: V(U).
        U: the first matching.
        mask: real nodes.
        tau: one temperature, or a schedule such as `annealing(0.1, 0.0125)`.
        tolerance: θ; 0 runs `max_iterations` without a test. A GPU tests every fifth iteration and acts on the result
            five iterations later, so that the host never waits for it.
        max_iterations: per temperature.
        project: by default `assign`, ten sweeps of Sinkhorn.
        objective: what `Solution.objective` evaluates; by default ⟨U, V(U)⟩, which is Eq. 6 for `edge_direction`.
        differentiable: keep the autograd graph of the iterations.
    """
    test_every = 1 if U.is_cpu else 5
    before: Tensor | float = math.inf
    iterations, bound = 0, tolerance * _root_sizes(mask) if tolerance > 0 else None
    with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
        for temperature in [tau] if isinstance(tau, int | float) else tau:
            converged = NonBlockingAll()
            for step in range(1, max_iterations + 1):
                before, U = U, project(direction(U), mask, tau=temperature)
                iterations += 1
                if bound is not None and step % test_every == 0 and converged(_change(U, before) <= bound):
                    break
    return Solution(U, before, mask, iterations, objective or (lambda U: (U * direction(U)).sum()))


def annealing(start: float, stop: float, factor: float = 0.5) -> tuple[float, ...]:
    """Temperatures start, start·factor, start·factor², … that are not below `stop`."""
    steps = math.floor(math.log(stop / start) / math.log(factor) + 1e-9)
    return tuple(start * factor**step for step in range(steps + 1))


def _change(U: Tensor, before: Tensor | float) -> Tensor:
    """‖U_i − before_i‖_F per graph."""
    return torch.linalg.vector_norm(U - before, dim=(1, 2))


def _root_sizes(mask: Tensor) -> Tensor:
    """√n_i; 1 for an empty graph."""
    return mask.sum(1).clamp(min=1).sqrt()
