"""Stabilised Sinkhorn in scaling form: matrix-vector products instead of logsumexp, safe at any temperature.

    P = diag(u) K diag(v),   K = exp((S + f + g)/τ),   u = a / (K v),   v = b / (Kᵀ u)

Why it is safe. The potentials f and g start such that the largest entry of every row and column of K is 1, so no sum
can be zero. A sweep then multiplies u_i v_j by at most max(n, d)². Entries of K that are too small for the number
format are raised to a floor. While u_i v_j is small these entries stay negligible; before it grows too large, u and v
are absorbed into f and g.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ttdg.matching.nonblocking import NonBlockingAll

FORBIDDEN = -1e30
"""Score of a pair that must not be matched. Finite, because −inf would give a fully forbidden row a NaN gradient."""

SWEEPS_PER_CHECK = 3
"""Sweeps between two tests for convergence and for absorption."""


@dataclass(frozen=True)
class Scaling:
    """The factors of a plan P = diag(u) K diag(v)."""

    K: Tensor  # b n d
    u: Tensor  # b 1 n: row vectors, because on CPUs row times matrix is the fast product
    v: Tensor  # b 1 d
    error: Tensor | None  # largest error of a column sum; None if tolerance was 0

    def plan(self, rows: int, cols: int) -> Tensor:
        """The first `rows` × `cols` entries of P; entries at the floor are set to 0, so forbidden pairs get 0."""
        K = torch.nn.functional.threshold(self.K[:, :rows, :cols], 1.001 * math.exp(_floor(self.K)), 0.0)
        return K.mul_(self.u.mT[:, :rows]).mul_(self.v[:, :, :cols])


def scale(S: Tensor, a: Tensor, b: Tensor, tau: float, tolerance: float, max_sweeps: int) -> Scaling:
    """Fits columns and rows of a balanced problem alternately, rows first and last.

    The host never waits for a GPU: there, scalings are absorbed at every check whether needed or not, and the loop
    stops one check late.
    """
    a, b, error, done = a[:, None, :], b[:, None, :], None, NonBlockingAll()
    K, f, g, v = _start(S, b, tau)
    u = a / torch.bmm(v, K.mT)
    for sweep in range(1, max_sweeps + 1):
        v = b / torch.bmm(u, K)
        u = a / torch.bmm(v, K.mT)
        if sweep % SWEEPS_PER_CHECK and sweep < max_sweeps:
            continue
        if tolerance > 0 and done((error := _column_error(K, b, u, v)) <= tolerance):
            break
        if sweep < max_sweeps and (not K.is_cpu or _reach(u, v) > _room(K)):
            (f, u), (g, v) = _absorbed(f, u, tau), _absorbed(g, v, tau)
            K = _exp((S + f.mT).add_(g), tau)
    return Scaling(K, u, v, error)


def _start(S: Tensor, b: Tensor, tau: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """K, f, g and v, such that the largest entry of every row and column of K is 1.

    v cancels g, so that the sweeps start as if from S itself. P does not depend on f and g, so they carry no gradient.
    """
    r = S.detach().amax(2, keepdim=True)
    f = torch.where(r > FORBIDDEN / 2, -r, 0.0)  # an absent row must not affect the column maxima
    L = S + f
    g = -L.detach().amax(1, keepdim=True)
    v = (-g / tau).clamp(min=_floor(S)).exp() * (b > 0)
    return _exp(L.add_(g), tau), f.mT, g, v


def _exp(L: Tensor, tau: float) -> Tensor:
    """exp(L/τ), in place of L = S + f + g.

    The sum is formed before the division by τ, because S/τ would lose the digits of max|S|/τ. L is clamped before exp,
    because exp and every later product are ten times slower on denormal numbers.
    """
    return L.mul_(1 / tau).clamp_(min=_floor(L)).exp_()


def _absorbed(potential: Tensor, scaling: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """The potential with the scaling's value added, and a scaling of value 1 that keeps the gradient."""
    value = scaling.detach().clamp(min=torch.finfo(scaling.dtype).tiny)
    return potential + tau * value.log(), scaling / value


def _column_error(K: Tensor, b: Tensor, u: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        return (torch.bmm(u, K) * v - b).abs().amax()


def _reach(u: Tensor, v: Tensor) -> float:
    """An upper bound on log u_i v_j."""
    return math.log(max(float(u.detach().amax()) * float(v.detach().amax()), 1.0))


def _room(K: Tensor) -> float:
    """Largest log u_i v_j allowed at a check.

    Until the next check, the error caused by the floor then stays below one rounding error of a unit mass.
    """
    growth = 2 * SWEEPS_PER_CHECK * math.log(max(K.shape[1:]))
    return math.log(torch.finfo(K.dtype).eps) - _floor(K) - growth


def _floor(like: Tensor) -> float:
    """Lower bound of log K: −70 in float32, high enough that products with u and v are not denormal either."""
    return 0.8 * math.log(torch.finfo(like.dtype).tiny)
