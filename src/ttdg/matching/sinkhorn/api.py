"""Entropic assignment with masses: what the paper calls Sinkhorn(X, τ), also for n_i ≠ d.

    P* = argmax_P ⟨P, S⟩ + τ H(P)

The side with less total mass is matched completely; the other side receives at most its mass. No doubly stochastic
matrix exists for n ≠ d, so one slack row (or column) takes the difference in mass. It is equivalent to d − n dummy rows
of constant score. A row or column of mass 0 is absent: it is zero in P and in the gradient.
"""

import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.errors import TtdgWarning
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
    """The plan P* of the module's docstring, by fitting columns and rows alternately, rows first and last.

    Row sums are exact after every sweep. The plan is computed in float32 (in float64 for float64 scores), also under
    autocast. The masses receive no gradient.

    Args:
        scores: S; FORBIDDEN marks pairs that must not be matched.
        row_mass: 1 for a real row, 0 for an absent one; other values are allowed.
        col_mass: the same for columns.
        tau: temperature τ > 0.
        tolerance: sweeps end when no column sum is off by more than this; 0 runs `max_sweeps` without a test.
        max_sweeps: number of sweeps (one column and one row step each), at most.
        backward: "unrolled" differentiates the sweeps. "implicit" differentiates the fixed point: time and memory do
            not depend on the number of sweeps, but the gradient is correct only at convergence. If the tolerance was
            not met, "implicit" falls back to "unrolled".
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
    """Log-domain reference with the same iterates as `sinkhorn(tolerance=0, max_sweeps=sweeps)`.

    The plainest form of the algorithm, on the potentials f and g. Several times slower, above all at small τ.
    """
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
    """The plan with a gradient to `scores`: implicit if asked for and converged, else unrolled."""
    if backward == "implicit" and tolerance > 0:
        with torch.no_grad():
            P, errors = _plan(scores, a, b, tau, tolerance, max_sweeps)
        if errors is not None and bool((errors <= tolerance).all()):
            return FixedPoint.apply(scores, P, a, b, tau)  # type: ignore[no-untyped-call]
    return scale(*balance(scores, a, b), tau, tolerance, max_sweeps).plan(*scores.shape[1:])


def _plan(
    scores: Tensor, a: Tensor, b: Tensor, tau: float, tolerance: float, max_sweeps: int
) -> tuple[Tensor, Tensor | None]:
    """The plan and its largest column errors, without gradients: fused on CUDA, else the scaling form."""
    kernel = _fused_kernel() if scores.is_cuda else None
    if kernel is not None and kernel.fits(scores):
        return kernel.run(scores, a, b, tau, tolerance, max_sweeps)
    scaling = scale(*balance(scores, a, b), tau, tolerance, max_sweeps)
    return scaling.plan(*scores.shape[1:]), scaling.error


class _Kernel(NamedTuple):
    fits: Callable[[Tensor], bool]
    run: Callable[..., tuple[Tensor, Tensor]]


@cache
def _fused_kernel() -> _Kernel | None:
    """The Triton kernel; None if Triton is missing or the kernel cannot be compiled."""
    try:
        from ttdg.matching.sinkhorn.triton import fits_on_chip, fused_sinkhorn

        one = torch.ones(1, 1, 1, device="cuda")
        fused_sinkhorn(one, one[0], one[0], 1.0, 0.0, 1)
    except ImportError:
        return None
    except Exception as error:  # noqa: BLE001 any failure leaves the unfused implementation
        warnings.warn(
            f"the fused Sinkhorn kernel could not be built; Sinkhorn runs about ten times slower: {error}",
            TtdgWarning,
            stacklevel=2,
        )
        return None
    return _Kernel(fits_on_chip, fused_sinkhorn)


def _log(mass: Tensor) -> Tensor:
    """log(mass), with FORBIDDEN instead of −∞."""
    return torch.where(mass > 0, mass.clamp(min=torch.finfo(mass.dtype).tiny).log(), FORBIDDEN)
