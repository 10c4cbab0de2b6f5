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


def fits_on_chip(scores: Tensor) -> bool:
    return math.prod(_block(scores)) <= LARGEST and scores.dtype != torch.float64


def _block(scores: Tensor) -> tuple[int, int]:
    """Powers of two; what lies outside n × d is masked. Slack is kept beside the block, not in it."""
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
    """P (b n d) for scores (b n d) and masses (b n), (b d), in float32, and each problem's column error.

    The error is that of the sweep before the last, which comes with the sweep for nothing.
    """
    batch, n, d = scores.shape
    (rows, cols), unit = _block(scores), 1 if d % 4 else 4
    P = torch.empty(batch, n, d, device=scores.device, dtype=torch.float32)
    error = torch.empty(batch, device=scores.device, dtype=torch.float32)
    with torch.cuda.device_of(scores):  # triton starts programs on the current device
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
            or min(32, max(4, rows * cols // 1024)),  # 32 entries a thread: fastest on an H200
        )
    return P, error


@triton.jit
@no_type_check  # triton reads the source: nothing may wrap it
def _fit(z, slack, mass, axis: tl.constexpr):
    """The potential that gives the exponentials of z + potential, and of slack + potential, these sums together; −10³⁰
    where all of them are impossible."""
    top = tl.maximum(tl.max(z, axis), slack)
    total = tl.sum(tl.exp(z - tl.expand_dims(top, axis)), axis) + tl.exp(slack - top)
    return tl.where(top > -1e29, tl.log(mass) - top - tl.log(total), -1e30)


@triton.jit
@no_type_check
def _fit_slack(z, mass):
    """The same for the one row or column of slack; −10³⁰ where there is none."""
    top = tl.max(z, 0)
    return tl.where(mass > 0, tl.log(mass) - top - tl.log(tl.sum(tl.exp(z - top), 0)), -1e30)


@triton.jit
@no_type_check
def _plan(
    scores, row_mass, col_mass, P, error, n, quarter, per_tau, tolerance, max_sweeps,
    UNIT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    NONE: tl.constexpr = -1e30
    d = (
        quarter * UNIT
    )  # said so, four columns go to a thread: a quarter of the rows, and of the registers for them
    problem = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, ROWS), tl.arange(0, COLS)
    inside = (i < n)[:, None] & (j < d)[None, :]
    cells = problem * n * d + (i[:, None] * d + j[None, :])
    a = tl.load(row_mass + problem * n + i, mask=i < n, other=0.0)
    b = tl.load(col_mass + problem * d + j, mask=j < d, other=0.0)
    S = tl.load(scores + cells, mask=inside, other=NONE)

    # What is absent, forbidden or not a number is impossible; what can be matched to nothing loses its mass.
    S = tl.where((a > 0)[:, None] & (b > 0)[None, :] & (S > NONE / 2), S, NONE)
    best = tl.max(S, 1)
    a = tl.where(best > NONE / 2, a, 0.0)
    b = tl.where(tl.max(S, 0) > NONE / 2, b, 0.0)
    L = tl.where(S > NONE / 2, (S - best[:, None]) * per_tau, NONE)

    # The difference in mass is a row of score 0, or a column of one score that no row's best falls below.
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
        if spare < 0:  # seldom: and a sum over rows is one over warps
            g_slack = _fit_slack(L_slack + f, -spare)
        f, f_slack = _fit(L + g[None, :], L_slack + g_slack, a, 1), _fit_slack(g, spare)
        worst = tl.max(tl.where(b > 0, tl.abs(b * (tl.exp(old - g) - 1.0)), 0.0), 0)
        sweep += 1
    tl.store(P + cells, tl.exp(L + f[:, None] + g[None, :]), mask=inside)
    tl.store(error + problem, worst)
