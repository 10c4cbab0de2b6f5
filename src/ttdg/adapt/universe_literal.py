"""The paper as printed, kept as a documented comparison: Algorithm 3 with Eq. 11 and the clamped Eq. 12.

Lv et al., Test-Time Domain Generalization via Universe Learning, CVPR 2025. The universe only starts the matching;
the loss compares M̂ with X = U Uᵀ by the printed formula, its log X clamped to be finite (for a hard X it is −∞);
SGD with 1e-3 on all parameters, as stated. Two things had to be chosen for it to run at all: D is a cosine distance
(the printed one is a similarity) and Sinkhorn has a slack row (n ≠ d has no doubly stochastic matrix). Its gradient
vanishes where the prediction is confidently wrong; on real sites it changes nothing measurable. It takes longer than
its passes explain: up to 50 iterations, one after another, of seven kernels each.
"""

from functools import partial

import torch
from torch import Tensor, nn

from ttdg.adapt import batchnorm, halves
from ttdg.adapt.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.graphs import Nodes
from ttdg.matching import assign, matching_loss, qap_direction, sinkhorn, soft_affinity, solve
from ttdg.parts import Part
from ttdg.prior import MorphologyPrior, maps_of


class LiteralAdapter(GradientAdapter):
    """Adapt on the batch with L_mat, then answer it with the adapted network."""

    def __init__(
        self, network: nn.Module, prior: MorphologyPrior, lr: float, edge_weight: float, tau: float
    ) -> None:
        batchnorm.use(network, batchnorm.EVAL)
        self.prior = prior.requires_grad_(False).to(next(network.parameters()).device)
        self.edge_weight, self.tau = edge_weight, tau
        sgd = partial(torch.optim.SGD, momentum=0.9)
        super().__init__(network, self.matching_loss, network.parameters(), lr=lr, optimiser=sgd)

    def __call__(self, images: Images) -> Logits:
        if len(images) > 1:  # one graph has no pair
            with torch.enable_grad():
                logits, maps = maps_of(self.network, images)
                projected = self.prior.project(maps, logits.shape[2:])
                loss = self.objective(self.prior.nodes(projected, logits.argmax(1)))
                loss = loss + 0 * logits.detach().sum()  # masks hide a NaN from the loss alone
            self._update(loss)
        with torch.no_grad():
            answer = self.network(images)
            if images.isfinite().all() & ~answer.isfinite().all():  # SGD on all weights has diverged
                self.reset()
                answer = self.network(images)
        return answer

    def matching_loss(self, nodes: Nodes) -> Tensor:
        """Eq. 12 over M_ij and U_i U_jᵀ."""
        M = self.prior.affinity(nodes.features, nodes.mask)
        return matching_loss(M, self._matched(nodes, M), nodes.mask, form="paper", tau=self.tau)

    @torch.no_grad()
    def _matched(self, nodes: Nodes, M: Tensor) -> Tensor:
        """Lines 3–12: U from 𝒱𝒰ᵀ, then iterated along Eq. 11, in which the universe no longer occurs."""
        graphs, M_hat = self.prior.graphs(nodes), soft_affinity(M, nodes.mask, tau=self.tau)
        U = assign(self.prior.scores(nodes, typed=False), nodes.mask, tau=self.tau)

        rows, columns = nodes.mask.to(U), torch.ones_like(U[:, 0])  # made once, not in each of 50 iterations

        def direction(U: Tensor) -> Tensor:
            return qap_direction(graphs.edges, M_hat, U, edge_weight=self.edge_weight)

        def project(V: Tensor, mask: Tensor, /, *, tau: float) -> Tensor:
            return sinkhorn(V, rows, columns, tau, tolerance=0.0, max_sweeps=10)

        return solve(
            direction, U, nodes.mask, tau=self.tau, tolerance=1e-5, max_iterations=50, project=project
        ).matching


def universe_literal(
    network: nn.Module, prior: Part, *, lr: float = 1e-3, edge_weight: float = 0.5, tau: float = 0.05
) -> Adapter:
    halves.check(network)
    return LiteralAdapter(network, MorphologyPrior.from_part(prior), lr, edge_weight, tau)


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
