# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Fused Sinkhorn for CUDA: one Triton program per matrix, which stays in registers for all sweeps.

On a GPU the time of the scaling form is launch latency alone: forty launches of microseconds each. Here masks, slack
and all sweeps are a single launch. The kernel iterates on potentials (log domain), because exponentials cost little
on a GPU. `sinkhorn` imports this module for CUDA tensors only. It needs Triton, which comes with torch's CUDA builds.
"""

import math
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 2**15
"""Largest number of entries of a block that fits into the registers of one multiprocessor."""


def fits_on_chip(scores: Tensor) -> bool:
    """True if one matrix of the batch fits into the registers of one multiprocessor and is not float64."""
    return math.prod(_block(scores)) <= LARGEST and scores.dtype != torch.float64


def _block(scores: Tensor) -> tuple[int, int]:
    """(n, d) rounded up to powers of two; the kernel masks the rest. Slack is stored outside the block."""
    n, d = scores.shape[1:]
    return max(16, triton.next_power_of_2(n)), max(16, triton.next_power_of_2(d))


def fused_sinkhorn(
    scores: Tensor,
    row_mass: Tensor,
    col_mass: Tensor,
    tau: float,
    tolerance: float,
    max_sweeps: int,
    *,
    warps: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The plans P (b n d) in float32 and the largest column error of each problem (b).

    The error is that of the sweep before the last, which is available at no extra cost.

    Args:
        scores: S, (b n d).
        row_mass: (b n).
        col_mass: (b d).
        tau: temperature.
        tolerance: sweeps end when the column error is not above it; 0 runs `max_sweeps`.
        max_sweeps: number of sweeps, at most.
        warps: warps per program; chosen by size if not given.
    """
    batch, n, d = scores.shape
    (rows, cols), unit = _block(scores), 1 if d % 4 else 4
    P = torch.empty(batch, n, d, device=scores.device, dtype=torch.float32)
    error = torch.empty(batch, device=scores.device, dtype=torch.float32)
    with torch.cuda.device_of(scores):  # Triton launches on the current device
        _plan[(batch,)](
            scores.float().contiguous(),
            row_mass.float().contiguous(),
            col_mass.float().contiguous(),
            P,
            error,
            n,
            d // unit,
            1.0 / tau,
            tolerance,
            max_sweeps,
            UNIT=unit,
            ROWS=rows,
            COLS=cols,
            num_warps=warps
            or min(32, max(4, rows * cols // 1024)),  # 32 entries per thread: fastest on an H200
        )
    return P, error


@triton.jit
@no_type_check  # Triton reads the source, so a type checker must not wrap the function
def _fit(z, slack, mass, axis: tl.constexpr):
    """Potential p such that Σ exp(z + p) along `axis` plus exp(slack + p) equals `mass`.

    −10³⁰ where every entry is forbidden.
    """
    top = tl.maximum(tl.max(z, axis), slack)
    total = tl.sum(tl.exp(z - tl.expand_dims(top, axis)), axis) + tl.exp(slack - top)
    return tl.where(top > -1e29, tl.log(mass) - top - tl.log(total), -1e30)


@triton.jit
@no_type_check
def _fit_slack(z, mass):
    """Potential of the slack row or column, such that Σ exp(z + p) equals `mass`; −10³⁰ if there is no slack."""
    top = tl.max(z, 0)
    return tl.where(mass > 0, tl.log(mass) - top - tl.log(tl.sum(tl.exp(z - top), 0)), -1e30)


@triton.jit
@no_type_check
def _plan(
    scores, row_mass, col_mass, P, error, n, quarter, per_tau, tolerance, max_sweeps,
    UNIT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Computes the plan of one problem of the batch; `quarter` is d / UNIT."""
    NONE: tl.constexpr = -1e30
    # Written as a product, d is known to be a multiple of UNIT. The compiler then gives each thread four columns,
    # which needs a quarter of the rows, and of the registers for them.
    d = quarter * UNIT
    problem = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, ROWS), tl.arange(0, COLS)
    inside = (i < n)[:, None] & (j < d)[None, :]
    cells = problem * n * d + (i[:, None] * d + j[None, :])
    a = tl.load(row_mass + problem * n + i, mask=i < n, other=0.0)
    b = tl.load(col_mass + problem * d + j, mask=j < d, other=0.0)
    S = tl.load(scores + cells, mask=inside, other=NONE)

    # Forbid absent, forbidden and NaN entries. Rows and columns without any allowed entry lose their mass.
    S = tl.where((a > 0)[:, None] & (b > 0)[None, :] & (S > NONE / 2), S, NONE)
    best = tl.max(S, 1)
    a = tl.where(best > NONE / 2, a, 0.0)
    b = tl.where(tl.max(S, 0) > NONE / 2, b, 0.0)
    L = tl.where(S > NONE / 2, (S - best[:, None]) * per_tau, NONE)

    # Slack takes the difference in mass: a row of score 0, or a column whose score is the smallest row maximum.
    spare = tl.sum(b, 0) - tl.sum(a, 0)
    lowest = tl.min(tl.where(a > 0, best, 0.0), 0)
    L_slack = tl.where(a > 0, (lowest - best) * per_tau, NONE)

    g, g_slack = tl.where(b > 0, 0.0, NONE), tl.where(spare < 0, 0.0, NONE)
    f, f_slack = _fit(L + g[None, :], L_slack + g_slack, a, 1), _fit_slack(g, spare)
    sweep = 0
    worst = tolerance + 1.0
    while (sweep < max_sweeps) & (worst > tolerance):
        old = g
        g = _fit(L + f[:, None], f_slack, b, 0)
        if spare < 0:  # rare, and costly: a sum over rows crosses warps
            g_slack = _fit_slack(L_slack + f, -spare)
        f, f_slack = _fit(L + g[None, :], L_slack + g_slack, a, 1), _fit_slack(g, spare)
        worst = tl.max(tl.where(b > 0, tl.abs(b * (tl.exp(old - g) - 1.0)), 0.0), 0)
        sweep += 1
    tl.store(P + cells, tl.exp(L + f[:, None] + g[None, :]), mask=inside)
    tl.store(error + problem, worst)
