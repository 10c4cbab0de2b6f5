"""The paper as printed, kept as a documented comparison: Algorithm 3 with Eq. 11 and the clamped Eq. 12.

Lv et al., Test-Time Domain Generalization via Universe Learning, CVPR 2025. The universe only starts the matching;
the loss compares M̂ with X = U Uᵀ by the printed formula, its log X clamped to be finite (for a hard X it is −∞);
SGD with 1e-3 on all parameters, as stated. Two things had to be chosen for it to run at all: D is a cosine distance
(the printed one is a similarity) and Sinkhorn has a slack row (n ≠ d has no doubly stochastic matrix). Its gradient
vanishes where the prediction is confidently wrong, but not elsewhere, and following it with all parameters destroys
the network: −22 and −15 Dice on the two benchmarks, 7 leave-one-out targets × 3 seeds (docs/results.md). It takes
longer than its passes explain: up to 50 iterations, one after another, of five calls each.

Ablations, by `variant`: "no-universe" starts at U = 1/d + 10⁻³z (the paper's "w/o 𝒰"); "random-universe" at a 𝒰 that
knows nothing (as we read its "w/o priors"); "no-consensus" stays at the start, where no graph's U depends on another's;
"pairwise" matches two graphs at a time by Eq. 4, with no universe, and its cycles need not close. "no-class-mask" is
"full" to the last bit: W occurs in Eq. 7, at the source, and Algorithm 3 has no class mask that could be left out.
"""

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.adaptation.universe.gradient import Variant
from ttdg.graphs import Nodes
from ttdg.matching import assign, matching_loss, qap_direction, soft_affinity, solve
from ttdg.matching.losses import MATCHING_LOSSES
from ttdg.matching.sinkhorn import sinkhorn
from ttdg.matching.solver import Direction
from ttdg.matching.universe import of_pairs, pair_indices
from ttdg.networks import batchnorm, split
from ttdg.prior import MorphologyPrior, feature_maps
from ttdg.types import Part


class LiteralAdapter(GradientAdapter):
    """Adapt on the batch with L_mat, then answer it with the adapted network."""

    def __init__(
        self, network: nn.Module, prior: MorphologyPrior, *, lr: float, edge_weight: float, tau: float,
        variant: Variant,
    ) -> None:  # fmt: skip
        batchnorm.use(network, batchnorm.EVAL)
        self.prior = prior.requires_grad_(False).to(next(network.parameters()).device)
        self.edge_weight, self.tau, self.variant = edge_weight, tau, variant
        sgd = partial(torch.optim.SGD, momentum=0.9)
        super().__init__(network, self.matching_loss, network.parameters(), lr=lr, optimiser=sgd)

    def __call__(self, images: Images) -> Logits:
        if len(images) > 1:  # one graph has no pair
            with torch.enable_grad():
                logits, maps = feature_maps(self.network, images)
                projected = self.prior.project(maps, logits.shape[2:])
                loss = self.objective(self.prior.nodes(projected, logits.argmax(1)))
                loss = loss + 0 * logits.detach().sum()  # masks hide a NaN from the loss alone
            self._update(loss)
        with torch.no_grad():
            answer = self.network(images)
            if not _finite(answer) and _finite(images):  # SGD on all weights has diverged
                self.reset()
                answer = self.network(images)
        return answer

    def matching_loss(self, nodes: Nodes) -> Tensor:
        """Eq. 12 over M_ij and X_ij, which is U_i U_jᵀ unless pairs are matched on their own."""
        M = self.prior.affinity(nodes.features, nodes.mask)
        if self.variant == "pairwise":
            i, j = pair_indices(len(M), M.device)
            X = self._paired(nodes, M)
            return MATCHING_LOSSES["paper"](of_pairs(M), X, nodes.mask[i], nodes.mask[j], self.tau)
        return matching_loss(M, self._matched(nodes, M), nodes.mask, form="paper", tau=self.tau)

    @torch.no_grad()
    def _matched(self, nodes: Nodes, M: Float[Tensor, "m m n n"]) -> Float[Tensor, "m n d"]:
        """Lines 3–12: U from 𝒱𝒰ᵀ, then iterated along Eq. 11, in which the universe no longer occurs."""
        U = self._first(nodes)
        if self.variant == "no-consensus":
            return U
        graphs, M_hat = self.prior.graphs(nodes), soft_affinity(M, nodes.mask, tau=self.tau)

        def direction(U: Tensor) -> Tensor:
            return qap_direction(graphs.edges, M_hat, U, edge_weight=self.edge_weight)

        return self._solved(direction, U, nodes.mask, torch.ones_like(U[:, 0]))

    def _first(self, nodes: Nodes) -> Float[Tensor, "m n d"]:
        S = self.prior.scores(nodes, typed=False)
        if self.variant != "no-universe":
            return assign(S, nodes.mask, tau=self.tau)
        z = torch.randn(S.shape, generator=torch.Generator().manual_seed(0)).to(S)  # the same in every batch
        return (1 / S.shape[2] + 1e-3 * z) * nodes.mask[:, :, None]

    @torch.no_grad()
    def _paired(self, nodes: Nodes, M: Float[Tensor, "m m n n"]) -> Float[Tensor, "p n n"]:
        """X_ij ← Sinkhorn(2λ 𝒜_i X_ij 𝒜_j + M̂_ij), the gradient of Eq. 4 for two graphs, from X_ij = M̂_ij."""
        i, j = pair_indices(len(M), M.device)
        edges, mask = self.prior.graphs(nodes).edges, nodes.mask
        M_hat = assign(of_pairs(M), mask[i], mask[j], tau=self.tau)
        left, right = 2 * self.edge_weight * edges[i], edges[j]

        def direction(X: Tensor) -> Tensor:
            return torch.baddbmm(M_hat, left @ X, right)

        return self._solved(direction, M_hat, mask[i], mask[j].to(M_hat))

    def _solved(self, direction: Direction, start: Tensor, mask: Tensor, columns: Tensor) -> Tensor:
        """Iterated to rest, at most 50 times; the masses are made once, not in each iteration."""
        rows = mask.to(start)

        def project(V: Tensor, mask: Tensor, /, *, tau: float) -> Tensor:
            return sinkhorn(V, rows, columns, tau, tolerance=0.0, max_sweeps=10)

        return solve(
            direction, start, mask, tau=self.tau, tolerance=1e-5, max_iterations=50, project=project
        ).matching


def universe_literal(
    network: nn.Module,
    part: Part,
    *,
    lr: float = 1e-3,
    edge_weight: float = 0.5,
    tau: float = 0.05,
    variant: Variant = "full",
) -> Adapter:
    prior = MorphologyPrior.from_part(part)
    split.require_split(network)
    if variant == "random-universe":
        prior = prior.with_random_universe()
    return LiteralAdapter(network, prior, lr=lr, edge_weight=edge_weight, tau=tau, variant=variant)


def _finite(x: Tensor) -> bool:
    """By its largest entry, which is NaN if any is."""
    return math.isfinite(torch.linalg.vector_norm(x, math.inf))


METHOD = Method(
    build=universe_literal,
    summary="the paper's Algorithm 3 as printed, clamped to be finite",
    adapts="all weights up to the nodes' deepest level",
    norm="EVAL",
    memory=True,
    forwards=2,
    backwards=1,
    predict="after",
    paper="Lv et al., CVPR 2025",
    origin="lr 1e-3, τ 0.05, 50 iterations: the paper's; λ ½: its code's",
    needs=("BatchNorm", "encode/decode", "batch ≥ 2"),
    parts=("prior",),
)
