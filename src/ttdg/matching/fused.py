# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Sinkhorn as one GPU program a matrix, which stays in registers from the first sweep to the last.

On a GPU the scaling form is nothing but launch latency: forty launches of microseconds each. Here the whole
problem — masks, slack, sweeps to a tolerance — is a single launch. On potentials, since exponentials are free
there. Imported by `sinkhorn` on CUDA tensors only; needs triton, which comes with torch's CUDA builds.
"""

import math
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 2**15
"""Entries, counted in powers of two, that the registers of one multiprocessor hold without spilling."""


def fits(scores: Tensor) -> bool:
    return math.prod(_block(scores)) <= LARGEST and scores.dtype != torch.float64


def _block(scores: Tensor) -> tuple[int, int]:
    return max(16, triton.next_power_of_2(scores.shape[1])), max(16, triton.next_power_of_2(scores.shape[2]))


def plan(
    scores: Tensor, row_mass: Tensor, col_mass: Tensor, tau: float, tolerance: float, max_sweeps: int
) -> tuple[Tensor, Tensor]:
    """P (b n d) for scores (b n d) and masses (b n), (b d), in float32, and each problem's column error.

    The error is that of the sweep before the last, which comes with the sweep for nothing.
    """
    batch, n, d = scores.shape
    rows, cols = _block(scores)
    P = torch.empty(batch, n, d, device=scores.device, dtype=torch.float32)
    error = torch.empty(batch, device=scores.device, dtype=torch.float32)
    warps = min(32, max(4, rows * cols // 1024))
    _plan[(batch,)](
        scores.float().contiguous(),
        row_mass.float().contiguous(),
        col_mass.float().contiguous(),
        P,
        error,
        n,
        d,
        1.0 / tau,
        tolerance,
        max_sweeps,
        ROWS=rows,
        COLS=cols,
        num_warps=warps,
    )
    return P, error


@triton.jit
@no_type_check  # triton reads the source: nothing may wrap it
def _lse(z, extra, axis: tl.constexpr):
    """log Σ exp along an axis, with one more term for each result."""
    top = tl.maximum(tl.max(z, axis), extra)
    total = tl.sum(tl.exp(z - tl.expand_dims(top, axis)), axis) + tl.exp(extra - top)
    return top + tl.log(total)


@triton.jit
@no_type_check
def _log(mass, NONE: tl.constexpr):
    return tl.where(mass > 0, tl.log(tl.maximum(mass, 1e-30)), NONE)


@triton.jit
@no_type_check
def _plan(
    scores, row_mass, col_mass, P, error, n, d, per_tau, tolerance, max_sweeps,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    NONE: tl.constexpr = -1e30
    problem = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, ROWS), tl.arange(0, COLS)
    inside = (i < n)[:, None] & (j < d)[None, :]
    at = problem * n * d + i[:, None] * d + j[None, :]
    S = tl.load(scores + at, mask=inside, other=NONE)
    a = tl.load(row_mass + problem * n + i, mask=i < n, other=0.0)
    b = tl.load(col_mass + problem * d + j, mask=j < d, other=0.0)

    # What is absent, forbidden or not a number is impossible; what can be matched to nothing loses its mass.
    possible = (a > 0)[:, None] & (b > 0)[None, :] & (S > NONE / 2)
    S = tl.where(possible, S, NONE)
    best = tl.max(S, 1)
    a = tl.where(best > NONE / 2, a, 0.0)
    b = tl.where(tl.max(S, 0) > NONE / 2, b, 0.0)
    best = tl.where(a > 0, best, 0.0)
    L = tl.where(possible, (S - best[:, None]) * per_tau, NONE)

    # Slack: a row of score 0 or a column of one low score, with the difference in mass.
    spare = tl.sum(b, 0) - tl.sum(a, 0)
    log_a, log_b = _log(a, NONE), _log(b, NONE)
    log_row, log_col = _log(spare, NONE), _log(-spare, NONE)
    slack = (tl.min(best, 0) - best) * per_tau
    slack = tl.where(a > 0, slack, NONE)

    g = tl.where(b > 0, 0.0, NONE)
    g_slack = tl.where(spare < 0, 0.0, NONE)
    f = log_a - _lse(L + g[None, :], slack + g_slack, 1)
    f_slack = log_row - _lse(g, NONE, 0)
    sweep = 0
    worst = tolerance + 1.0
    while (sweep < max_sweeps) & (worst > tolerance):
        old = g
        g = log_b - _lse(L + f[:, None], f_slack + tl.zeros_like(g), 0)
        g_slack = log_col - _lse(slack + f, NONE, 0)
        f = log_a - _lse(L + g[None, :], slack + g_slack, 1)
        f_slack = log_row - _lse(g, NONE, 0)
        worst = tl.max(tl.where(b > 0, tl.abs(b * (tl.exp(old - g) - 1.0)), 0.0), 0)
        sweep += 1
    tl.store(P + at, tl.exp(L + f[:, None] + g[None, :]), mask=inside)
    tl.store(error + problem, worst)
