"""Where a universe matching improves: V_i = ½ ∂J/∂U_i for the objectives of the paper, without a loop over
pairs.

Σ_j 𝒜_i U_i U_jᵀ 𝒜_j U_j = 𝒜_i U_i S with S = Σ_j U_jᵀ 𝒜_j U_j, every graph's edges drawn on the universe
(d×d). Edges are symmetric, affinities satisfy M_ji = M_ijᵀ; padded rows of U, edges and affinity are zero.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ttdg.matching.universe import pairwise


def edge_direction(
    edges: Float[Tensor, "m n n"], U: Float[Tensor, "m n d"], *, self_weight: float = 1.0
) -> Float[Tensor, "m n d"]:
    """HiPPI: 𝐀 𝐔 𝐔ᵀ 𝐀 𝐔 (Eq. 6), a quarter of the gradient of tr(𝐔ᵀ𝐀𝐔𝐔ᵀ𝐀𝐔).

    `self_weight` scales the pairs i = j. They are constant for hard matchings and only hold a graph where it
    is: with few graphs, less weight leaves it freer to move.
    """
    AU, S = _drawn(edges, U, self_weight)
    return AU @ S


def within_class(edges: Float[Tensor, "m n n"], labels: Int[Tensor, "m n"]) -> Float[Tensor, "m n n"]:
    """𝒜_i ∘ W_ii: only edges between nodes of one class. What we recommend for 𝐀̃ of Eq. 7."""
    return edges * (labels[:, :, None] == labels[:, None, :])


def label_gram_direction(
    edges: Float[Tensor, "m n n"], labels: Int[Tensor, "m n"], U: Float[Tensor, "m n d"]
) -> Float[Tensor, "m n d"]:
    """HiPPI on 𝐀̃ = 𝐖ᵀ𝐀𝐖 as printed (Eq. 7), with 𝐖 = 𝐘𝐘ᵀ for one-hot labels 𝐘; label 0 is padding.

    𝐀̃ = 𝐘 B 𝐘ᵀ with B = 𝐘ᵀ𝐀𝐘 has one row per class, so all nodes of a class receive the same direction and
    become indistinguishable. Kept for comparison with the paper.
    """
    Y = torch.nn.functional.one_hot(labels.long())[:, :, 1:].to(U)
    B = torch.einsum("ink,inp,ipl->kl", Y, edges, Y)
    T = torch.einsum("ink,ind->kd", Y, U)
    return Y @ (B @ (T @ T.T) @ B @ T)


def node_direction(affinity: Float[Tensor, "m m n n"], U: Float[Tensor, "m n d"]) -> Float[Tensor, "m n d"]:
    """Σ_j M_ij U_j as one product. Free of copies if `affinity` is in `stacked` layout."""
    return (_one_matrix(affinity) @ U.flatten(0, 1)).view_as(U)


def qap_direction(
    edges: Float[Tensor, "m n n"],
    affinity: Float[Tensor, "m m n n"] | None,
    U: Float[Tensor, "m n d"],
    *,
    edge_weight: float = 0.5,
    unary: Float[Tensor, "m n d"] | None = None,
    self_weight: float = 1.0,
) -> Float[Tensor, "m n d"]:
    """V_i = Σ_j (2λ 𝒜_i U_i U_jᵀ 𝒜_j U_j + M_ij U_j) + E_i: half the gradient of `qap_objective`.

    Eq. 11 prints λ for 2λ: its λ is twice `edge_weight`. `unary` holds scores of nodes against universe
    points, already weighted; it keeps the prior in every step, where the paper uses it for the first U only.
    Without `affinity` the cost is linear in the number of graphs.
    """
    V, beta = (U, 0) if unary is None else (unary, 1)  # β = 0: no term yet
    if affinity is not None:
        M, nodes = _one_matrix(affinity), U.flatten(0, 1)
        V, beta = torch.addmm(V.flatten(0, 1), M, nodes, beta=beta).view_as(U), 1
    if edge_weight:
        AU, S = _drawn(edges, U, self_weight)
        V, beta = torch.baddbmm(V, AU, S.expand(len(U), -1, -1), beta=beta, alpha=2 * edge_weight), 1
    return V if beta else torch.zeros_like(U)


def qap_objective(
    edges: Float[Tensor, "m n n"],
    affinity: Float[Tensor, "m m n n"] | None,
    U: Float[Tensor, "m n d"],
    *,
    edge_weight: float = 0.5,
    unary: Float[Tensor, "m n d"] | None = None,
) -> Float[Tensor, ""]:
    """J = Σ_ij λ tr(X_ijᵀ 𝒜_i X_ij 𝒜_j) + tr(X_ijᵀ M_ij) (Eq. 4) + 2 Σ_i tr(U_iᵀ E_i)."""
    J = edge_weight * (U * edge_direction(edges, U)).sum()
    J = J if affinity is None else J + (pairwise(U) * affinity).sum()
    return J if unary is None else J + 2 * (U * unary).sum()


def in_gains(V: Float[Tensor, "m n d"], mask: Bool[Tensor, "m n"]) -> Float[Tensor, "m n d"]:
    """V per graph in units of its mean gain, a row's best entry over the row's average.

    A temperature means nothing without a scale of V. In this unit one temperature serves graphs of any size
    and number, which it does not in units of the largest entry.
    """
    gain = (V.amax(2) - V.mean(2)) * mask
    return V / (gain.sum(1) / mask.sum(1).clamp(min=1)).clamp(min=torch.finfo(V.dtype).tiny)[:, None, None]


def stacked(affinity: Float[Tensor, "m m n n"]) -> Float[Tensor, "m m n n"]:
    """The same blocks, laid out in memory as the one N×N matrix [M_ij]."""
    return affinity.transpose(1, 2).contiguous().transpose(1, 2)


def _one_matrix(affinity: Tensor) -> Tensor:
    m, _, n, _ = affinity.shape
    return affinity.transpose(1, 2).reshape(m * n, m * n)


def _drawn(edges: Tensor, U: Tensor, self_weight: float) -> tuple[Tensor, Tensor]:
    """𝒜_i U_i, and what it should agree with: all graphs' edges drawn on the universe, one matrix for all graphs or,
    where a graph's own count less, one for each."""
    AU = edges @ U
    if self_weight == 1.0:
        return AU, U.flatten(0, 1).T @ AU.flatten(0, 1)
    own = U.mT @ AU
    return AU, own.sum(0) - (1 - self_weight) * own
