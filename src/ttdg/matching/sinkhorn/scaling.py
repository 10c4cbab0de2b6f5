"""Sinkhorn in scaling form, stabilised: matrix-vector products instead of logsumexp, safe at any temperature.

    P = diag(u) K diag(v),   K = exp((S + f + g)/τ),   u = a / (K v),   v = b / (Kᵀ u)

Why it is safe. The potentials f, g start so that the largest entry of every row and column of K is 1, and no
sum can vanish. From there a sweep multiplies u_i v_j by at most max(n, d)². Entries of K too small for the
number format are raised to `floor`; while u_i v_j is small they stay negligible, and before it is not, u and
v are absorbed into f and g.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ttdg.matching.nonblocking import NonBlockingAll

FORBIDDEN = -1e30
"""The score of an impossible pair. Finite: −inf would turn the gradient of an all-forbidden row into NaN."""

SWEEPS_PER_CHECK = 3


@dataclass(frozen=True)
class Scaling:
    K: Tensor  # b n d
    u: Tensor  # b 1 n: row vectors, since on CPUs a row times a matrix is the fast product
    v: Tensor  # b 1 d
    error: Tensor | None  # the largest error of a column, None if nobody asked

    def plan(self, rows: int, cols: int) -> Tensor:
        """The first rows and columns of P, with what was raised to the floor back at 0: forbidden is
        impossible, not unlikely."""
        K = torch.nn.functional.threshold(self.K[:, :rows, :cols], 1.001 * math.exp(_floor(self.K)), 0.0)
        return K.mul_(self.u.mT[:, :rows]).mul_(self.v[:, :, :cols])


def scale(S: Tensor, a: Tensor, b: Tensor, tau: float, tolerance: float, max_sweeps: int) -> Scaling:
    """Fit columns and rows of a balanced problem in turn, rows first and last.

    A GPU is never waited for: it absorbs at every check, whether it must or not, and stops one check late.
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
    """K with f, g such that its largest entry in every row and column is 1, and the v that undoes g, so that
    sweeps start as if from S itself. P does not depend on f and g, so they carry no gradient."""
    r = S.detach().amax(2, keepdim=True)
    f = torch.where(r > FORBIDDEN / 2, -r, 0.0)  # an absent row must not show in the maxima of columns
    L = S + f
    g = -L.detach().amax(1, keepdim=True)
    v = (-g / tau).clamp(min=_floor(S)).exp() * (b > 0)
    return _exp(L.add_(g), tau), f.mT, g, v


def _exp(L: Tensor, tau: float) -> Tensor:
    """exp(L/τ) in place of L = S + f + g. Sums come before the division, as S/τ would cost the digits
    of max|S|/τ; clamping before exp, as it and every product after it is ten times slower on denormal
    numbers."""
    return L.mul_(1 / tau).clamp_(min=_floor(L)).exp_()


def _absorbed(potential: Tensor, scaling: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """The scaling moved into its potential. What is left of it is 1 in value, and keeps the gradient."""
    value = scaling.detach().clamp(min=torch.finfo(scaling.dtype).tiny)
    return potential + tau * value.log(), scaling / value


def _column_error(K: Tensor, b: Tensor, u: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        return (torch.bmm(u, K) * v - b).abs().amax()


def _reach(u: Tensor, v: Tensor) -> float:
    """A bound on log u_i v_j."""
    return math.log(max(float(u.detach().amax()) * float(v.detach().amax()), 1.0))


def _room(K: Tensor) -> float:
    """How large log u_i v_j may be at a check, so that until the next one what the floor adds stays below one
    rounding error of a unit mass."""
    growth = 2 * SWEEPS_PER_CHECK * math.log(max(K.shape[1:]))
    return math.log(torch.finfo(K.dtype).eps) - _floor(K) - growth


def _floor(like: Tensor) -> float:
    """−70 in float32, so that products with u and v are no denormal numbers either."""
    return 0.8 * math.log(torch.finfo(like.dtype).tiny)
