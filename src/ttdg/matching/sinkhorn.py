"""Entropic assignment between masses: what the paper calls Sinkhorn(X, τ), for n_i ≠ d as well.

    P* = argmax_P ⟨P, S⟩ + τ H(P),   the lighter side carried whole, the heavier side filled at most

No doubly stochastic matrix exists for n ≠ d, so one slack row (or column) carries the difference in mass; it
equals d − n dummy rows of constant score. A row or column of mass 0 is absent: zero in P, zero in the
gradient.
"""

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.matching.implicit import FixedPoint
from ttdg.matching.scaling import FORBIDDEN, scale


def sinkhorn(
    scores: Float[Tensor, "*batch n d"],
    row_mass: Float[Tensor, "*batch n"],
    col_mass: Float[Tensor, "*batch d"],
    tau: float,
    *,
    tolerance: float = 1e-4,
    max_sweeps: int = 200,
    backward: Literal["unrolled", "implicit"] = "implicit",
) -> Float[Tensor, "*batch n d"]:
    """The plan P of the problem above, by fitting columns and rows in turn, rows first and last.

    Rows are exact after every sweep; sweeps end when no column is off by more than `tolerance` in mass, or at
    `max_sweeps`. `tolerance=0` runs `max_sweeps` without looking. Computed in float32 (float64 if so given),
    also under autocast. The masses receive no gradient.

    "implicit" differentiates the fixed point: memory and time independent of the sweeps, right only there. If
    the tolerance was not met, the gradient is that of the sweeps themselves, as with "unrolled".
    """
    with torch.autocast(scores.device.type, enabled=False):
        problem = balance(scores, row_mass, col_mass)
        n, d = scores.shape[-2:]
        if problem[0].requires_grad and torch.is_grad_enabled() and backward == "implicit":
            return _fixed_point(*problem, tau, tolerance, max_sweeps)[:, :n, :d].reshape(scores.shape)
        return scale(*problem, tau, tolerance, max_sweeps).plan(n, d).view(scores.shape)


def sinkhorn_log(
    scores: Float[Tensor, "*batch n d"],
    row_mass: Float[Tensor, "*batch n"],
    col_mass: Float[Tensor, "*batch d"],
    tau: float,
    *,
    sweeps: int = 10,
) -> Float[Tensor, "*batch n d"]:
    """The iterates of `sinkhorn(tolerance=0, max_sweeps=sweeps)` on potentials f, g: the plain statement of
    the algorithm, kept as the reference. Several times slower, most of all at small τ."""
    S, a, b = balance(scores, row_mass, col_mass)
    L, log_a, log_b = S / tau, _log(a)[:, :, None], _log(b)[:, None, :]
    g = torch.where(log_b > FORBIDDEN / 2, 0.0, FORBIDDEN)
    f = log_a - (L + g).logsumexp(2, keepdim=True)
    for _ in range(sweeps):
        g = log_b - (L + f).logsumexp(1, keepdim=True)
        f = log_a - (L + g).logsumexp(2, keepdim=True)
    return (L + f + g).exp()[:, : scores.shape[-2], : scores.shape[-1]].reshape(scores.shape)


def balance(
    scores: Float[Tensor, "*batch n d"],
    row_mass: Float[Tensor, "*batch n"],
    col_mass: Float[Tensor, "*batch d"],
) -> tuple[Float[Tensor, "b n1 d1"], Float[Tensor, "b n1"], Float[Tensor, "b d1"]]:
    """The problem with slack in row n and column d, so that both masses have one total; leading dimensions
    as one.

    A constant added to a row or a column changes no optimum, so the slack's scores are free: 0 for the row,
    and for the column a value no row's maximum falls below. Rows and columns that can be matched to nothing
    lose their mass. Absent ones fill up to a multiple of 16, where vectorised maxima are four times faster.
    Where nothing has mass, one unit goes from slack to slack: then no sum ever vanishes.
    """
    *batch, n, d = scores.shape
    with torch.no_grad():
        S = _pad(scores.reshape(math.prod(batch), n, d), FORBIDDEN, dims=2)
        a = _pad(row_mass.reshape(len(S), n), 0.0, dims=1).to(S.dtype)
        b = _pad(col_mass.reshape(len(S), d), 0.0, dims=1).to(S.dtype)
        if not _complete(scores, row_mass, col_mass):
            a, b = _clear_absent(S, a, b)
        _add_slack(S, a, b, n, d)
    if scores.requires_grad:
        S = _Padded.apply(scores, S)  # type: ignore[no-untyped-call]
    return S, a, b


def _complete(scores: Tensor, row_mass: Tensor, col_mass: Tensor) -> bool:
    """Whether nothing is absent or forbidden, as is common and quickly seen."""
    if 0 in scores.shape:
        return False
    return bool((scores.amin() > FORBIDDEN / 2) & (row_mass.amin() > 0) & (col_mass.amin() > 0))


def _clear_absent(S: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Forbid, in S itself, what has no mass; take the mass of what may be matched to nothing."""
    S.nan_to_num_(nan=FORBIDDEN)
    S.clamp_(max=torch.where(a > 0, math.inf, FORBIDDEN)[:, :, None])
    S.clamp_(max=torch.where(b > 0, math.inf, FORBIDDEN)[:, None, :])
    return a * (S.amax(2) > FORBIDDEN / 2), b * (S.amax(1) > FORBIDDEN / 2)


def _add_slack(S: Tensor, a: Tensor, b: Tensor, n: int, d: int) -> None:
    """Fill row n or column d, in place, with the difference in mass."""
    total = b.sum(1, keepdim=True)
    spare, idle = total - a.sum(1, keepdim=True), total == 0
    a[:, n : n + 1], b[:, d : d + 1] = spare.clamp(min=0) + idle, (-spare).clamp(min=0) + idle
    S[:, n, :d] = torch.where(spare > 0, 0.0, FORBIDDEN)
    S[:, n, d:] = torch.where(idle, 0.0, FORBIDDEN)
    if bool((spare < 0).any()):
        lowest = S.amax(2).where(a > 0, 0.0).amin(1, keepdim=True)
        S[:, :, d] = torch.where((a > 0) & (spare < 0), lowest, S[:, :, d])


class _Padded(torch.autograd.Function):
    """`S` is `scores` with constants around it and in place of what is absent, where P has no gradient
    anyhow."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, S: Tensor) -> Tensor:
        ctx.shape, ctx.dtype = scores.shape, scores.dtype
        return S

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        *_, n, d = ctx.shape
        return G[:, :n, :d].reshape(ctx.shape).to(ctx.dtype), None


def _pad(x: Tensor, value: float, dims: int) -> Tensor:
    """A copy with room for one more along the last `dims` dimensions, up to a multiple of 16; at least
    float32."""
    widths = [width for size in reversed(x.shape[-dims:]) for width in (0, 16 - size % 16)]
    return torch.nn.functional.pad(x.to(torch.promote_types(x.dtype, torch.float32)), widths, value=value)


def _fixed_point(S: Tensor, a: Tensor, b: Tensor, tau: float, tolerance: float, max_sweeps: int) -> Tensor:
    """The whole balanced plan: slack has a part in the gradient."""
    with torch.no_grad():
        converged = scale(S, a, b, tau, tolerance, max_sweeps)
    if tolerance > 0 and converged.error <= tolerance:
        P = converged.plan(*S.shape[1:])
        return FixedPoint.apply(S, P, tau)  # type: ignore[no-untyped-call]
    return scale(S, a, b, tau, tolerance, max_sweeps).plan(*S.shape[1:])


def _log(mass: Tensor) -> Tensor:
    return torch.where(mass > 0, mass.clamp(min=torch.finfo(mass.dtype).tiny).log(), FORBIDDEN)
