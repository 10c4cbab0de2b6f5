"""Sinkhorn in scaling form, stabilised: matrix-vector products instead of logsumexp, safe at any temperature.

    P = diag(u) K diag(v),   u = a / (K v),   v = b / (Kᵀ u)

Why it is safe. K starts with the largest entry of every row and column equal to 1, so no sum can vanish.
From there one sweep multiplies u_i v_j by at most max(n, d)². Entries of K too small for the floating-point
format are raised to `floor`; they stay negligible as long as u_i v_j is small enough, and u, v are absorbed
into K before that.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FORBIDDEN = -1e30
"""The score of an impossible pair. Finite: −inf would turn the gradient of an all-forbidden row into NaN."""

SWEEPS_PER_CHECK = 3


@dataclass(frozen=True)
class Kernel:
    """K = exp(L), and its transpose stored as well: on CPUs a row vector times a matrix is several times
    faster than a matrix times a column."""

    rows: Tensor  # b n d
    cols: Tensor  # b d n

    @staticmethod
    def exp(L: Tensor) -> "Kernel":
        # Clamped first: exp and every product after it are ten times slower on denormal numbers.
        K = L.clamp(min=_floor(L.dtype)).exp_()
        return Kernel(K, K.transpose(1, 2).contiguous())

    def fit_rows(self, a: Tensor, v: Tensor) -> Tensor:
        return a / torch.bmm(v, self.cols)

    def fit_cols(self, b: Tensor, u: Tensor) -> Tensor:
        return b / torch.bmm(u, self.rows)

    def plan(self, u: Tensor, v: Tensor) -> Tensor:
        """diag(u) K diag(v), with what was raised to the floor back at 0: forbidden is impossible, not
        unlikely."""
        floor = math.exp(_floor(u.dtype)) * 1.001
        return torch.nn.functional.threshold(self.rows, floor, 0.0).mul_(u.transpose(1, 2)).mul_(v)


def scale(
    S: Tensor, a: Tensor, b: Tensor, tau: float, tolerance: float, max_sweeps: int
) -> tuple[Tensor, float]:
    """The plan of a balanced problem, ending on rows, and the largest error of a column (NaN if not asked
    for)."""
    a, b = a[:, None, :], b[:, None, :]
    L, v = _shifted(S, b, tau)
    K = Kernel.exp(L)
    u = K.fit_rows(a, v)
    error = math.nan
    for sweep in range(1, max_sweeps + 1):
        v = K.fit_cols(b, u)
        u = K.fit_rows(a, v)
        if sweep % SWEEPS_PER_CHECK and sweep < max_sweeps:
            continue
        if tolerance > 0 and (error := _column_error(K, b, u, v)) <= tolerance:
            break
        if sweep < max_sweeps and _reach(u, v) > _room(L):
            L, u, v = _absorbed(L, u, v)
            K = Kernel.exp(L)
    return K.plan(u, v), error


def _shifted(S: Tensor, b: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """(S − row maxima − column maxima)/τ, and the v that undoes the column shift, so that sweeps start as if
    unshifted. The plan does not depend on the shifts, so they carry no gradient. Differences are taken before
    the division: S/τ alone would cost the digits of max|S|/τ."""
    r = S.detach().amax(2, keepdim=True)
    L = S - torch.where(r > FORBIDDEN / 2, r, 0.0)  # an absent row must not show in the column maxima
    c = L.detach().amax(1, keepdim=True)
    v = (c / tau).clamp(min=_floor(S.dtype)).exp() * (b > 0)
    return L.sub_(c).mul_(1 / tau), v


def _absorbed(L: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same plan with u and v moved into L. What is left of them is 1 in value, and keeps the gradient."""
    tiny = torch.finfo(L.dtype).tiny
    u0, v0 = u.detach().clamp(min=tiny), v.detach().clamp(min=tiny)
    return L + u0.log().transpose(1, 2) + v0.log(), u / u0, v / v0


def _column_error(K: Kernel, b: Tensor, u: Tensor, v: Tensor) -> float:
    with torch.no_grad():
        return float((torch.bmm(u, K.rows) * v - b).abs().amax())


def _reach(u: Tensor, v: Tensor) -> float:
    """A bound on log u_i v_j."""
    return math.log(max(float(u.detach().amax()) * float(v.detach().amax()), 1.0))


def _room(L: Tensor) -> float:
    """How large log u_i v_j may be at a check, so that until the next one what the floor adds stays under one
    rounding error of a unit mass."""
    growth = 2 * SWEEPS_PER_CHECK * math.log(max(L.shape[1:]))
    return math.log(torch.finfo(L.dtype).eps) - _floor(L.dtype) - growth


def _floor(dtype: torch.dtype) -> float:
    return 0.8 * math.log(
        torch.finfo(dtype).tiny
    )  # −70 in float32: products with u and v are no denormals either
