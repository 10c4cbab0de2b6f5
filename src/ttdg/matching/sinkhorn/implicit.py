"""The gradient of Sinkhorn's fixed point, by the implicit function theorem.

At the optimum P = exp((S + f 1ᵀ + 1 gᵀ)/τ) with fixed marginals. For an incoming gradient G,

    ∂ℓ/∂S = P ∘ (G − α 1ᵀ − 1 βᵀ) / τ,

where α and β make all row and column sums zero. Eliminating α leaves one symmetric d×d system for β. Memory does not
depend on the number of sweeps.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class FixedPoint(torch.autograd.Function):
    """Identity on `P` whose backward treats P as the optimal plan of `scores` at temperature τ."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, P: Tensor, row_mass: Tensor, col_mass: Tensor, tau: float
    ) -> Tensor:
        """A copy of `P`."""
        ctx.save_for_backward(P, row_mass, col_mass)
        ctx.tau, ctx.dtype = tau, scores.dtype
        return P.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None, None, None, None]:
        """The gradient of `scores`; the other arguments have none."""
        P, a, b = ctx.saved_tensors
        P = P.double()
        _, n, d = P.shape
        tangent = _tangent(_with_slack(P, a, b), torch.nn.functional.pad(G.double(), (0, 1, 0, 1)))
        return (P * tangent[:, :n, :d] / ctx.tau).to(ctx.dtype), None, None, None, None


def _with_slack(P: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """P with one more row and column that hold the unmatched mass of the heavier side."""
    spare = (b.sum(1, dtype=P.dtype) - a.sum(1, dtype=P.dtype))[:, None]
    row = (b - P.sum(1)).clamp(min=0) * (spare > 0)
    col = (a - P.sum(2)).clamp(min=0) * (spare < 0)
    P = torch.cat([P, row[:, None, :]], 1)
    return torch.cat([P, torch.nn.functional.pad(col, (0, 1))[:, :, None]], 2)


def _tangent(P: Tensor, G: Tensor) -> Tensor:
    """G − α 1ᵀ − 1 βᵀ, in float64, because the system is close to singular near a permutation.

    The masses are the sums of P, so an unconverged P is differentiated as the optimum for those masses. Solutions
    differ by a constant added to α and subtracted from β, which cancels; the small ridge selects one of them.
    """
    PG = P * G
    rows, cols = _positive(P.sum(2, keepdim=True)), _positive(P.sum(1))
    Q, by_row, by_col = P / rows, PG.sum(2, keepdim=True), PG.sum(1)[:, :, None]
    H = torch.baddbmm(torch.diag_embed(cols * (1 + 1e-12)), Q.mT, P, alpha=-1)
    rhs = torch.baddbmm(by_col, Q.mT, by_row, alpha=-1)
    L, _ = torch.linalg.cholesky_ex(H, check_errors=H.is_cpu)  # checking would block on a GPU
    beta = torch.cholesky_solve(rhs, L)
    alpha = torch.baddbmm(by_row, P, beta, alpha=-1) / rows
    return G - alpha - beta.mT


def _positive(mass: Tensor) -> Tensor:
    """Mass with 1 instead of 0 for absent rows and columns, whose equations then have the solution 0."""
    return mass.masked_fill(mass <= 0, 1.0)
