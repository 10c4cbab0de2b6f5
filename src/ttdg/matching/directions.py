"""Update directions V_i = ½ ∂J/∂U_i of the paper's objectives, without a loop over pairs of graphs.

Σ_j 𝒜_i U_i U_jᵀ 𝒜_j U_j = 𝒜_i U_i S, where S = Σ_j U_jᵀ 𝒜_j U_j (d×d) is the sum of all graphs' edges mapped to the
universe. All functions assume symmetric edges, M_ji = M_ijᵀ, and zeros in padded rows of U, edges and affinity.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ttdg.matching.universe import pairwise


def edge_direction(
    edges: Float[Tensor, "m n n"], U: Float[Tensor, "m n d"], *, self_weight: float = 1.0
) -> Float[Tensor, "m n d"]:
    """HiPPI direction 𝐀𝐔𝐔ᵀ𝐀𝐔 (Algorithm 2, line 3): a quarter of the gradient of Eq. 6.

    `self_weight` scales the pairs i = j. These terms are constant for hard matchings and pull each graph towards its
    current matching, so a smaller weight lets a few graphs move more freely.
    """
    AU, S = _on_universe(edges, U, self_weight)
    return AU @ S


def within_class(edges: Float[Tensor, "m n n"], labels: Int[Tensor, "m n"]) -> Float[Tensor, "m n n"]:
    """𝒜_i ∘ W_ii: keeps the edges between nodes of the same class; recommended instead of 𝐀̃ in Eq. 7."""
    return edges * (labels[:, :, None] == labels[:, None, :])


def label_gram_direction(
    edges: Float[Tensor, "m n n"], labels: Int[Tensor, "m n"], U: Float[Tensor, "m n d"]
) -> Float[Tensor, "m n d"]:
    """HiPPI direction on the printed 𝐀̃ = 𝐖ᵀ𝐀𝐖 (Eq. 7), with 𝐖 = 𝐘𝐘ᵀ for one-hot labels 𝐘; label 0 is padding.

    𝐀̃ = 𝐘 B 𝐘ᵀ with B = 𝐘ᵀ𝐀𝐘 has one distinct row per class, so all nodes of a class get the same direction and can
    no longer be told apart. Kept for comparison with the paper.
    """
    Y = torch.nn.functional.one_hot(labels.long())[:, :, 1:].to(U)
    B = torch.einsum("ink,inp,ipl->kl", Y, edges, Y)
    T = torch.einsum("ink,ind->kd", Y, U)
    return Y @ (B @ (T @ T.T) @ B @ T)


def node_direction(affinity: Float[Tensor, "m m n n"], U: Float[Tensor, "m n d"]) -> Float[Tensor, "m n d"]:
    """Σ_j M_ij U_j, the node term of Eq. 11, as one product; makes no copy if `affinity` is `stacked`."""
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
    """V_i = Σ_j (2λ 𝒜_i U_i U_jᵀ 𝒜_j U_j + M_ij U_j) + E_i (Eq. 11): half the gradient of `qap_objective`.

    `edge_weight` is λ of Eq. 4. Eq. 11 prints λ where the gradient of Eq. 4 has 2λ, so the printed λ of Eq. 11 is
    twice `edge_weight`. `unary` is E, scores of nodes for universe points with their weight already applied. It keeps
    the universe in every iteration; the paper uses 𝒱𝒰ᵀ for the first U only. Without `affinity` the cost is linear in
    the number of graphs.
    """
    V, beta = (U, 0) if unary is None else (unary, 1)  # β = 0: V holds no term yet
    if affinity is not None:
        M, nodes = _one_matrix(affinity), U.flatten(0, 1)
        V, beta = torch.addmm(V.flatten(0, 1), M, nodes, beta=beta).view_as(U), 1
    if edge_weight:
        AU, S = _on_universe(edges, U, self_weight)
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
    """J = Σ_ij λ tr(X_ijᵀ 𝒜_i X_ij 𝒜_j) + tr(X_ijᵀ M_ij) (Eq. 4, X_ij = U_i U_jᵀ) + 2 Σ_i tr(U_iᵀ E_i)."""
    J = edge_weight * (U * edge_direction(edges, U)).sum()
    J = J if affinity is None else J + (pairwise(U) * affinity).sum()
    return J if unary is None else J + 2 * (U * unary).sum()


def scale_by_mean_gain(V: Float[Tensor, "m n d"], mask: Bool[Tensor, "m n"]) -> Float[Tensor, "m n d"]:
    """V divided, per graph, by its mean gain: the largest entry of a row minus the row's mean, averaged over rows.

    A Sinkhorn temperature has a meaning only relative to the scale of V. In this unit one temperature suits graphs of
    any size and number; in units of the largest entry it does not.
    """
    gain = (V.amax(2) - V.mean(2)) * mask
    return V / (gain.sum(1) / mask.sum(1).clamp(min=1)).clamp(min=torch.finfo(V.dtype).tiny)[:, None, None]


def stacked(affinity: Float[Tensor, "m m n n"]) -> Float[Tensor, "m m n n"]:
    """The same blocks M_ij, stored in memory as one N×N matrix with N = m·n."""
    return affinity.transpose(1, 2).contiguous().transpose(1, 2)


def _one_matrix(affinity: Tensor) -> Tensor:
    m, _, n, _ = affinity.shape
    return affinity.transpose(1, 2).reshape(m * n, m * n)


def _on_universe(edges: Tensor, U: Tensor, self_weight: float) -> tuple[Tensor, Tensor]:
    """𝒜_i U_i and S = Σ_j U_jᵀ 𝒜_j U_j; one S per graph if the weight of its own term j = i is not 1."""
    AU = edges @ U
    if self_weight == 1.0:
        return AU, U.flatten(0, 1).T @ AU.flatten(0, 1)
    own = U.mT @ AU
    return AU, own.sum(0) - (1 - self_weight) * own
