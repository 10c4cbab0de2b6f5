"""Losses with a matching as target: L(𝒰) for the universe (Eq. 9) and L_mat for the affinity (Eq. 12).

Targets never receive a gradient. Losses are per node and ignore padding.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.errors import UserError, suggestion
from ttdg.matching.sinkhorn import sinkhorn
from ttdg.matching.sinkhorn.scaling import FORBIDDEN
from ttdg.matching.universe import assign, of_pairs, pair_indices, universe_scores


def universe_loss(
    nodes: Float[Tensor, "m n h"],
    universe: Float[Tensor, "d h"],
    target: Float[Tensor, "m n d"],
    mask: Bool[Tensor, "m n"],
    *,
    form: str = "cross_entropy",
    tau: float = 0.1,
    universe_decay: float = 0.0,
    allowed: Bool[Tensor, "m n d"] | None = None,
) -> Float[Tensor, ""]:
    """L(𝒰): loss per node between the scores 𝒱𝒰ᵀ and the target matching U*, plus α‖𝒰‖²_F / d.

    Args:
        nodes: 𝒱.
        universe: 𝒰.
        target: U*.
        mask: real nodes.
        form: "cross_entropy" compares the softmax of each node's scores with its row of U*, "fenchel_young" compares
            the whole assignment, "squared" regresses the raw scores on U* as Eq. 9 does (`ridge_loss` is Eq. 9
            exactly as printed).
        tau: temperature of the first two forms.
        universe_decay: α.
        allowed: pairs of nodes and points that may be matched; the others are ignored.
    """
    if form not in UNIVERSE_LOSSES:
        raise UserError(f"no universe loss {form!r}{suggestion(form, UNIVERSE_LOSSES)}")
    scores = universe_scores(nodes, universe, allowed)
    loss = UNIVERSE_LOSSES[form](scores, target.detach() * mask[:, :, None], mask, tau)
    return loss + universe_decay * universe.square().sum() / len(universe)


def ridge_loss(
    nodes: Float[Tensor, "m n h"],
    universe: Float[Tensor, "d h"],
    target: Float[Tensor, "m n d"],
    mask: Bool[Tensor, "m n"],
    universe_decay: float,
) -> Float[Tensor, ""]:
    """Σ_i ‖U_i* − 𝒱_i 𝒰ᵀ‖²_F + α‖𝒰‖²_F: Eq. 9 exactly as printed.

    The paper calls it non-negative matrix factorisation, but no factor is constrained to be non-negative: it is a ridge
    regression.
    """
    squared = _squared(universe_scores(nodes, universe), target.detach(), mask, 1.0) * _rows(mask)
    return squared + universe_decay * universe.square().sum()


def ridge_universe(
    nodes: Float[Tensor, "m n h"],
    target: Float[Tensor, "m n d"],
    mask: Bool[Tensor, "m n"],
    universe_decay: float,
) -> Float[Tensor, "d h"]:
    """The 𝒰 that minimises Eq. 9 in closed form: 𝐔*ᵀ𝐕 (𝐕ᵀ𝐕 + αI)⁻¹, 𝐕 being all nodes stacked."""
    V, U = nodes[mask], target[mask]
    ridge = universe_decay * torch.eye(V.shape[1], dtype=V.dtype, device=V.device)
    return torch.linalg.solve(V.T @ V + ridge, V.T @ U).T


def matching_loss(
    affinity: Float[Tensor, "m m n n"],
    U: Float[Tensor, "m n d"],
    mask: Bool[Tensor, "m n"],
    *,
    form: str = "fenchel_young",
    tau: float = 0.05,
) -> Float[Tensor, ""]:
    """L_mat: loss per node between the affinities M_ij and the matches X_ij = U_i U_jᵀ, over i < j.

    Args:
        affinity: M, before Sinkhorn.
        U: the matching that gives the targets X.
        mask: real nodes.
        form: "fenchel_young" is the default. "focal" compares M̂_ij = Sinkhorn(M_ij, τ) with X_ij entry by entry
            (γ = 2, α = ¼), with the logarithms on the prediction. "paper" is Eq. 12 as printed (γ = 2), with X_ij
            clamped to [10⁻⁶, 1 − 10⁻⁶] inside the logarithms, because log X_ij is −∞ for a hard matching. For a hard
            matching the clamped loss equals |log 10⁻⁶| Σ|M̂ − X|^γ, and its gradient vanishes where M̂ is confidently
            wrong.
        tau: temperature of Sinkhorn.
    """
    if form not in MATCHING_LOSSES:
        raise UserError(f"no matching loss {form!r}{suggestion(form, MATCHING_LOSSES)}")
    i, j = pair_indices(len(U), U.device)
    U = U.detach() * mask[:, :, None]
    return MATCHING_LOSSES[form](of_pairs(affinity), U[i] @ U[j].mT, mask[i], mask[j], tau)


def fenchel_young(
    scores: Float[Tensor, "b n d"],
    target: Float[Tensor, "b n d"],
    row_mask: Bool[Tensor, "b n"],
    col_mask: Bool[Tensor, "b d"],
    tau: float = 0.05,
    *,
    tolerance: float = 1e-3,
    max_sweeps: int = 100,
) -> Float[Tensor, ""]:
    """Fenchel–Young loss L(S; X) = F(S) − ⟨X, S⟩ − τ H(X) with F(S) = max_P ⟨P, S⟩ + τ H(P), per row.

    The loss is convex in S, never negative, and zero where Sinkhorn(S) = X. Its gradient is P − X with P = Sinkhorn(S),
    so no gradient passes through Sinkhorn and a confidently wrong prediction gets a full correction. P has the row
    masses of X, so a node that X leaves unmatched contributes nothing; columns hold at most mass 1.
    """
    possible = row_mask[:, :, None] & col_mask[:, None, :] & (scores > FORBIDDEN / 2)
    S, X = torch.where(possible, scores, 0.0), torch.where(possible, target.detach().to(scores.dtype), 0.0)
    with torch.no_grad():
        b = col_mask.to(X.dtype)
        P = sinkhorn(
            torch.where(possible, S, FORBIDDEN), X.sum(2), b, tau, tolerance=tolerance, max_sweeps=max_sweeps
        )
        entropies = tau * (_entropy(P, b) - _entropy(X, b))
    return (((P - X) * S).sum() + entropies) / _rows(row_mask)


def _universe_fenchel_young(scores: Tensor, target: Tensor, mask: Tensor, tau: float) -> Tensor:
    return fenchel_young(scores, target, mask, torch.ones_like(target[:, 0], dtype=torch.bool), tau)


def _cross_entropy(scores: Tensor, target: Tensor, mask: Tensor, tau: float) -> Tensor:
    return -(target * (scores / tau).log_softmax(2)).sum() / _rows(mask)


def _squared(scores: Tensor, target: Tensor, mask: Tensor, tau: float) -> Tensor:
    return ((target - scores).square() * mask[:, :, None]).sum() / _rows(mask)


def _focal(scores: Tensor, X: Tensor, row_mask: Tensor, col_mask: Tensor, tau: float) -> Tensor:
    """Focal binary cross-entropy with prediction M̂ and target X: Eq. 12 with its arguments in the right places."""
    M = _prediction(scores, row_mask, col_mask, tau).clamp(1e-6, 1 - 1e-6)
    match = 0.25 * (1 - M).square() * X * M.log()
    other = 0.75 * M.square() * (1 - X) * (1 - M).log()
    return -_over_real(match + other, row_mask, col_mask)


def _as_printed(scores: Tensor, X: Tensor, row_mask: Tensor, col_mask: Tensor, tau: float) -> Tensor:
    """Eq. 12 as printed: −Σ M̂^γ (1 − X) log X − Σ (1 − M̂)^γ X log(1 − X), γ = 2, X clamped in the logarithms."""
    M, X_log = _prediction(scores, row_mask, col_mask, tau), X.clamp(1e-6, 1 - 1e-6)
    other = M.square() * torch.xlogy(1 - X, X_log)
    match = (1 - M).square() * torch.xlogy(X, 1 - X_log)
    return -(match + other).sum() / _rows(row_mask)  # padding has M = X = 0 and adds 0


def _prediction(scores: Tensor, row_mask: Tensor, col_mask: Tensor, tau: float) -> Tensor:
    """M̂ = Sinkhorn(M, τ), differentiable."""
    return assign(scores, row_mask, col_mask, tau=tau, tolerance=1e-3, max_sweeps=100, backward="implicit")


def _over_real(terms: Tensor, row_mask: Tensor, col_mask: Tensor) -> Tensor:
    return (terms * row_mask[:, :, None] * col_mask[:, None, :]).sum() / _rows(row_mask)


def _entropy(P: Tensor, col_mass: Tensor) -> Tensor:
    """−Σ P log P, including the slack row."""
    slack = (col_mass - P.sum(1)).clamp(min=0)
    return -torch.xlogy(P, P).sum() - torch.xlogy(slack, slack).sum()


def _rows(mask: Tensor) -> Tensor:
    """Number of real nodes, at least 1."""
    return mask.sum().clamp(min=1)


UNIVERSE_LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = {
    "cross_entropy": _cross_entropy,
    "fenchel_young": _universe_fenchel_young,
    "squared": _squared,
}
MATCHING_LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]] = {
    "fenchel_young": fenchel_young,
    "focal": _focal,
    "paper": _as_printed,
}
