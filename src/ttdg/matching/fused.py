# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Sinkhorn as one GPU program a matrix, which stays on the chip from the first sweep to the last.

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
"""Entries, counted in powers of two, beyond which one multiprocessor's registers are too few."""


def fits(scores: Tensor) -> bool:
    return math.prod(_block(scores)) <= LARGEST and scores.dtype != torch.float64


def _block(scores: Tensor) -> tuple[int, int]:
    """Powers of two with room for the slack row and column."""
    n, d = scores.shape[1:]
    return max(16, triton.next_power_of_2(n + 1)), max(16, triton.next_power_of_2(d + 1))


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
    warps = min(32, max(4, rows * cols // 512))  # sixteen entries a thread
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
def _fit(z, mass, axis: tl.constexpr):
    """The potential that gives the exponentials of z + potential these sums; −10³⁰ where z is impossible."""
    top = tl.max(z, axis)
    total = tl.sum(tl.exp(z - tl.expand_dims(top, axis)), axis)
    return tl.where(top > -1e29, tl.log(mass) - top - tl.log(total), -1e30)


@triton.jit
@no_type_check
def _masses(at, i, n, slack):
    """A row's mass, read anew each time: thirty-two registers a thread are worth more than a cached read."""
    return tl.where(i == n, slack, tl.load(at + i, mask=i < n, other=0.0, volatile=True))


@triton.jit
@no_type_check
def _plan(
    scores, row_mass, col_mass, P, error, n, d, per_tau, tolerance, max_sweeps,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    NONE: tl.constexpr = -1e30
    problem = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, ROWS), tl.arange(0, COLS)
    rows, cells = row_mass + problem * n, problem * n * d
    a = tl.load(rows + i, mask=i < n, other=0.0)
    b = tl.load(col_mass + problem * d + j, mask=j < d, other=0.0)
    inside = (i < n)[:, None] & (j < d)[None, :]
    S = tl.load(scores + cells + (i[:, None] * d + j[None, :]), mask=inside, other=NONE)

    # What is absent, forbidden or not a number is impossible; what can be matched to nothing loses its mass.
    S = tl.where((a > 0)[:, None] & (b > 0)[None, :] & (S > NONE / 2), S, NONE)
    best = tl.max(S, 1)
    b = tl.where(tl.max(S, 0) > NONE / 2, b, 0.0)
    spare = tl.sum(b, 0) - tl.sum(tl.where(best > NONE / 2, a, 0.0), 0)
    lowest = tl.min(tl.where(best > NONE / 2, best, 0.0), 0)

    # Slack: row n with score 0 or column d with one low score takes the difference in mass.
    S = tl.where((i == n)[:, None] & (b > 0)[None, :], tl.where(spare > 0, 0.0, NONE), S)
    S = tl.where((best > NONE / 2)[:, None] & (j == d)[None, :], tl.where(spare < 0, lowest, NONE), S)
    row_slack = tl.maximum(spare, 0.0)
    b = tl.where(j == d, tl.maximum(-spare, 0.0), b)
    best = tl.max(S, 1)
    L = tl.where(S > NONE / 2, (S - best[:, None]) * per_tau, NONE)

    g = tl.where(b > 0, 0.0, NONE)
    f = _fit(L + g[None, :], _masses(rows, i, n, row_slack), 1)
    sweep = 0
    worst = tolerance + 1.0
    while (sweep < max_sweeps) & (worst > tolerance):
        old = g
        g = _fit(L + f[:, None], b, 0)
        f = _fit(L + g[None, :], _masses(rows, i, n, row_slack), 1)
        worst = tl.max(tl.where(b > 0, tl.abs(b * (tl.exp(old - g) - 1.0)), 0.0), 0)
        sweep += 1
    inside = (i < n)[:, None] & (j < d)[None, :]
    tl.store(P + cells + (i[:, None] * d + j[None, :]), tl.exp(L + f[:, None] + g[None, :]), mask=inside)
    tl.store(error + problem, worst)
