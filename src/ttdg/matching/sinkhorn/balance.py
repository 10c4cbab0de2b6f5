"""A transport problem made balanced: slack carries the difference in mass, what is absent is impossible."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.matching.sinkhorn.scaling import FORBIDDEN


def balance(
    scores: Float[Tensor, "b n d"], row_mass: Float[Tensor, "b n"], col_mass: Float[Tensor, "b d"]
) -> tuple[Float[Tensor, "b n1 d1"], Float[Tensor, "b n1"], Float[Tensor, "b d1"]]:
    """The problem with slack in row n and column d, so that both masses have one total.

    A constant added to a row or a column changes no optimum, so the slack's scores are free: 0 for the row,
    and for the column a value no row's maximum falls below. Rows and columns that can be matched to nothing
    lose their mass. Absent ones fill up to a multiple of 16, where vectorised maxima are four times faster.
    Where nothing has mass, one unit goes from slack to slack: then no sum ever vanishes.
    """
    _, n, d = scores.shape
    with torch.no_grad():
        S = _pad(scores, FORBIDDEN, dims=2)
        a, b = _pad(row_mass, 0.0, dims=1).to(S.dtype), _pad(col_mass, 0.0, dims=1).to(S.dtype)
        if not scores.is_cpu or not _complete(
            scores, row_mass, col_mass
        ):  # a GPU is not asked: that means to wait
            a, b = _clear_absent(S, a, b)
        _add_slack(S, a, b, n, d)
    if scores.requires_grad:
        S = _Padded.apply(scores, S)  # type: ignore[no-untyped-call]
    return S, a, b


def _complete(scores: Tensor, row_mass: Tensor, col_mass: Tensor) -> bool:
    """Whether nothing is absent or forbidden, as is common and quickly seen."""
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
    if not S.is_cpu or bool((spare < 0).any()):
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
        _, n, d = ctx.shape
        return G[:, :n, :d].to(ctx.dtype), None


def _pad(x: Tensor, value: float, dims: int) -> Tensor:
    """A copy with room for one more along the last `dims` dimensions, up to a multiple of 16; at least
    float32."""
    widths = [width for size in reversed(x.shape[-dims:]) for width in (0, 16 - size % 16)]
    return torch.nn.functional.pad(x.to(torch.promote_types(x.dtype, torch.float32)), widths, value=value)
