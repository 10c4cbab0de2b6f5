"""Balanced form of an assignment problem: slack takes the difference in mass, absent pairs are forbidden."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.matching.sinkhorn.scaling import FORBIDDEN


def balance(
    scores: Float[Tensor, "b n d"], row_mass: Float[Tensor, "b n"], col_mass: Float[Tensor, "b d"]
) -> tuple[Float[Tensor, "b n1 d1"], Float[Tensor, "b n1"], Float[Tensor, "b d1"]]:
    """Scores and masses with slack in row n and column d, so that both sides have the same total mass.

    A constant added to a row or a column does not change the optimum, so the scores of slack are arbitrary: 0 in the
    row; in the column the smallest of the row maxima. Rows and columns without any allowed partner lose their mass.
    Absent rows and columns pad both sizes to a multiple of 16, where vectorised maxima are four times faster. If
    nothing has mass, one unit is assigned from slack to slack, so that no sum is ever zero.
    """
    _, n, d = scores.shape
    with torch.no_grad():
        S = _pad(scores, FORBIDDEN, dims=2)
        a, b = _pad(row_mass, 0.0, dims=1).to(S.dtype), _pad(col_mass, 0.0, dims=1).to(S.dtype)
        # On a GPU `_complete` is not called: reading its result would block.
        if not scores.is_cpu or not _complete(scores, row_mass, col_mass):
            a, b = _clear_absent(S, a, b)
        _add_slack(S, a, b, n, d)
    if scores.requires_grad:
        S = _Padded.apply(scores, S)  # type: ignore[no-untyped-call]
    return S, a, b


def _complete(scores: Tensor, row_mass: Tensor, col_mass: Tensor) -> bool:
    """True if no row or column is absent and no pair is forbidden: the common case, cheap to test."""
    return bool((scores.amin() > FORBIDDEN / 2) & (row_mass.amin() > 0) & (col_mass.amin() > 0))


def _clear_absent(S: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Forbids absent rows and columns, in place in S; returns masses with 0 where no pair is allowed."""
    S.nan_to_num_(nan=FORBIDDEN)
    S.clamp_(max=torch.where(a > 0, math.inf, FORBIDDEN)[:, :, None])
    S.clamp_(max=torch.where(b > 0, math.inf, FORBIDDEN)[:, None, :])
    return a * (S.amax(2) > FORBIDDEN / 2), b * (S.amax(1) > FORBIDDEN / 2)


def _add_slack(S: Tensor, a: Tensor, b: Tensor, n: int, d: int) -> None:
    """Gives row n or column d the difference in mass, in place."""
    total = b.sum(1, keepdim=True)
    spare, empty = total - a.sum(1, keepdim=True), total == 0
    a[:, n : n + 1], b[:, d : d + 1] = spare.clamp(min=0) + empty, (-spare).clamp(min=0) + empty
    S[:, n, :d] = torch.where(spare > 0, 0.0, FORBIDDEN)
    S[:, n, d:] = torch.where(empty, 0.0, FORBIDDEN)
    if not S.is_cpu or bool((spare < 0).any()):
        lowest = S.amax(2).where(a > 0, 0.0).amin(1, keepdim=True)
        S[:, :, d] = torch.where((a > 0) & (spare < 0), lowest, S[:, :, d])


class _Padded(torch.autograd.Function):
    """Passes the gradient of the padded S on to `scores`.

    S differs from `scores` only by constants: in the padding, and at absent pairs, where P has no gradient.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, S: Tensor) -> Tensor:
        ctx.shape, ctx.dtype = scores.shape, scores.dtype
        return S

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        _, n, d = ctx.shape
        return G[:, :n, :d].to(ctx.dtype), None


def _pad(x: Tensor, value: float, dims: int) -> Tensor:
    """A copy in at least float32, its last `dims` sizes enlarged by 1 or more to a multiple of 16."""
    widths = [width for size in reversed(x.shape[-dims:]) for width in (0, 16 - size % 16)]
    return torch.nn.functional.pad(x.to(torch.promote_types(x.dtype, torch.float32)), widths, value=value)
