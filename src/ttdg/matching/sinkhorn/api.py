"""Entropic assignment between masses: what the paper calls Sinkhorn(X, τ), for n_i ≠ d as well.

    P* = argmax_P ⟨P, S⟩ + τ H(P),   the lighter side carried whole, the heavier side filled at most

No doubly stochastic matrix exists for n ≠ d, so one slack row (or column) carries the difference in mass; it
equals d − n dummy rows of constant score. A row or column of mass 0 is absent: zero in P, zero in the
gradient.
"""

import math
import warnings
from functools import cache
from types import ModuleType
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.matching.sinkhorn.balance import balance
from ttdg.matching.sinkhorn.implicit import FixedPoint
from ttdg.matching.sinkhorn.scaling import FORBIDDEN, scale


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
    if scores.numel() == 0:
        return scores.to(torch.promote_types(scores.dtype, torch.float32))
    *batch, n, d = scores.shape
    flat = math.prod(batch)
    problem = scores.reshape(flat, n, d), row_mass.reshape(flat, n), col_mass.reshape(flat, d)
    with torch.autocast(scores.device.type, enabled=False):
        if scores.requires_grad and torch.is_grad_enabled():
            P = _differentiable(*problem, tau, tolerance, max_sweeps, backward)
        else:
            P, _ = _plan(*problem, tau, tolerance, max_sweeps)
    return P.view(scores.shape)


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
    *batch, n, d = scores.shape
    flat = math.prod(batch)
    S, a, b = balance(scores.reshape(flat, n, d), row_mass.reshape(flat, n), col_mass.reshape(flat, d))
    L, log_a, log_b = S / tau, _log(a)[:, :, None], _log(b)[:, None, :]
    g = torch.where(log_b > FORBIDDEN / 2, 0.0, FORBIDDEN)
    f = log_a - (L + g).logsumexp(2, keepdim=True)
    for _ in range(sweeps):
        g = log_b - (L + f).logsumexp(1, keepdim=True)
        f = log_a - (L + g).logsumexp(2, keepdim=True)
    return (L + f + g).exp()[:, :n, :d].reshape(scores.shape)


def _differentiable(
    scores: Tensor, a: Tensor, b: Tensor, tau: float, tolerance: float, max_sweeps: int, backward: str
) -> Tensor:
    if backward == "implicit" and tolerance > 0:
        with torch.no_grad():
            P, errors = _plan(scores, a, b, tau, tolerance, max_sweeps)
        if errors is not None and bool((errors <= tolerance).all()):
            return FixedPoint.apply(scores, P, a, b, tau)  # type: ignore[no-untyped-call]
    return scale(*balance(scores, a, b), tau, tolerance, max_sweeps).plan(*scores.shape[1:])


def _plan(
    scores: Tensor, a: Tensor, b: Tensor, tau: float, tolerance: float, max_sweeps: int
) -> tuple[Tensor, Tensor | None]:
    """The plan and its largest column errors, by whichever way is fastest here. Without gradients."""
    fused = _fused_kernel() if scores.is_cuda else None
    if fused is not None and fused.fits(scores):
        P, errors = fused.plan(scores, a, b, tau, tolerance, max_sweeps)
        return P, errors
    scaling = scale(*balance(scores, a, b), tau, tolerance, max_sweeps)
    return scaling.plan(*scores.shape[1:]), scaling.error


@cache
def _fused_kernel() -> ModuleType | None:
    """The GPU program, if it can be built here: Triton may be missing, or the compiler it calls."""
    try:
        from ttdg.matching.sinkhorn import triton

        one = torch.ones(1, 1, 1, device="cuda")
        triton.fused_sinkhorn(one, one[0], one[0], 1.0, 0.0, 1)
    except ImportError:
        return None
    except Exception as error:  # noqa: BLE001 whatever it is, there is another way
        warnings.warn(
            f"Sinkhorn runs unfused, at a tenth of the speed: {error}", RuntimeWarning, stacklevel=2
        )
        return None
    return triton


def _log(mass: Tensor) -> Tensor:
    return torch.where(mass > 0, mass.clamp(min=torch.finfo(mass.dtype).tiny).log(), FORBIDDEN)
