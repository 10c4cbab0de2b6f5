"""The method "universe-literal": Algorithm 3 of the paper as printed, kept as a comparison.

Lv et al., Test-Time Domain Generalization via Universe Learning, CVPR 2025. The matching starts from the universe and
is iterated by Eq. 11. The universe should be that of the paper's own training (`LiteralPrior`); with a universe of
`MorphologyPrior` the method runs too, and `remarks` says so. The loss compares M̂ with X = U Uᵀ by the printed Eq. 12,
whose log X is clamped to be finite (it is −∞ for a hard X). SGD with learning rate 1e-3 updates all parameters, as
stated. Two choices were needed to run the algorithm at all: D is a cosine distance (the printed D is a similarity), and
Sinkhorn has a slack row (for n ≠ d there is no doubly stochastic matrix).

The gradient of the loss vanishes where the prediction is confidently wrong, but not elsewhere. Following it with all
parameters destroys the network: −22 and −15 Dice on the two benchmarks, 7 leave-one-out targets × 3 seeds, over a
source of 600 steps with the universe of `MorphologyPrior` (docs/measurements/methods.md). It takes longer than its
number of passes suggests, because it runs up to 50 sequential iterations of five calls each.

Ablations, by `variant`:

* "no-universe" starts at U = 1/d + 10⁻³z with normal noise z (the paper's "w/o 𝒰").
* "random-universe" starts from an untrained 𝒰 (our reading of the paper's "w/o priors"). For a `LiteralPrior` that is
  1/d + 10⁻³z.
* "no-consensus" keeps the starting point, in which no graph's U depends on another graph.
* "pairwise" matches two graphs at a time by Eq. 4, without a universe; its matchings need not be cycle-consistent.
* "no-class-mask" is identical to "full": the class mask W occurs in Eq. 7, at the source, but not in Algorithm 3. The
  recipe's field `class_matrix` leaves it out there.
"""

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.adapter import GradientAdapter, Images, Logits, Method
from ttdg.adaptation.options import WEIGHT, Option, Range
from ttdg.adaptation.universe.gradient import Variant
from ttdg.matching import assign, matching_loss, qap_direction, soft_affinity, solve
from ttdg.matching.losses import MATCHING_LOSSES
from ttdg.matching.sinkhorn import sinkhorn
from ttdg.matching.solver import Direction
from ttdg.matching.universe import of_pairs, pair_indices
from ttdg.networks import batchnorm, feature_maps, split
from ttdg.prior import LiteralPrior, MorphologyPrior, Nodes, prior_from_part
from ttdg.types import Part

OTHER_TRAINING = (
    "The universe of this model was not trained by the paper's Algorithm 1, so this is not the paper's method as a "
    "whole; train the model with the universe loss 'literal' for that."
)


class UniverseLiteralAdapter(GradientAdapter):
    """Updates all parameters on the loss L_mat of a batch, then predicts the batch."""

    def __init__(
        self, network: nn.Module, prior: LiteralPrior | MorphologyPrior, *, lr: float, edge_weight: float, tau: float,
        variant: Variant,
    ) -> None:  # fmt: skip
        batchnorm.use(network, batchnorm.EVAL)
        self.prior = prior.requires_grad_(False).to(next(network.parameters()).device)
        self.edge_weight, self.tau, self.variant = edge_weight, tau, variant
        sgd = partial(torch.optim.SGD, momentum=0.9)
        super().__init__(network, self.matching_loss, network.parameters(), lr=lr, optimiser=sgd)

    def __call__(self, images: Images) -> Logits:
        """Update on batches of at least two images, and return the logits after the update."""
        if len(images) > 1:  # the loss is defined on pairs of graphs
            with torch.enable_grad():
                logits, maps = feature_maps(self.network, images, self.prior.spec.levels)
                projected = self.prior.project(maps, images.shape[2:])
                loss = self.objective(self.prior.nodes(projected, logits.argmax(1)))
                loss = loss + 0 * logits.detach().sum()  # passes on a NaN that the masks would hide
            self._update(loss)
        with torch.no_grad():
            logits = self.network(images)
            if not _is_finite(logits):  # SGD on all weights has diverged
                self.reset()
                logits = self.network(images)
        return logits

    def remarks(self) -> tuple[str, ...]:
        """Say that the universe was trained otherwise than in the paper, if it was."""
        return () if isinstance(self.prior, LiteralPrior) else (OTHER_TRAINING,)

    def matching_loss(self, nodes: Nodes) -> Tensor:
        """Eq. 12 over all pairs of graphs; X_ij is U_i U_jᵀ, or the matching of the pair for "pairwise"."""
        M = self.prior.affinity(nodes.features, nodes.mask)
        if self.variant == "pairwise":
            i, j = pair_indices(len(M), M.device)
            X = self._match_pairs(nodes, M)
            return MATCHING_LOSSES["paper"](of_pairs(M), X, nodes.mask[i], nodes.mask[j], self.tau)
        return matching_loss(M, self._match(nodes, M), nodes.mask, form="paper", tau=self.tau)

    @torch.no_grad()
    def _match(self, nodes: Nodes, M: Float[Tensor, "m m n n"]) -> Float[Tensor, "m n d"]:
        """Lines 5–12 of Algorithm 3: U starts from 𝒱𝒰ᵀ and is iterated by Eq. 11, which does not contain 𝒰."""
        U = self._initial_matching(nodes)
        if self.variant == "no-consensus":
            return U
        graphs, M_hat = self.prior.graphs(nodes), soft_affinity(M, nodes.mask, tau=self.tau)

        def direction(U: Tensor) -> Tensor:
            return qap_direction(graphs.edges, M_hat, U, edge_weight=self.edge_weight)

        return self._iterate(direction, U, nodes.mask, torch.ones_like(U[:, 0]))

    def _initial_matching(self, nodes: Nodes) -> Float[Tensor, "m n d"]:
        S = self.prior.scores_of_all(nodes)
        if self.variant != "no-universe":
            return assign(S, nodes.mask, tau=self.tau)
        z = torch.randn(S.shape, generator=torch.Generator().manual_seed(0)).to(
            S
        )  # the same noise for every batch
        return (1 / S.shape[2] + 1e-3 * z) * nodes.mask[:, :, None]

    @torch.no_grad()
    def _match_pairs(self, nodes: Nodes, M: Float[Tensor, "m m n n"]) -> Float[Tensor, "p n n"]:
        """Iterate X_ij ← Sinkhorn(2λ 𝒜_i X_ij 𝒜_j + M̂_ij), the gradient of Eq. 4 for two graphs, from X_ij = M̂_ij."""
        i, j = pair_indices(len(M), M.device)
        edges, mask = self.prior.graphs(nodes).edges, nodes.mask
        M_hat = assign(of_pairs(M), mask[i], mask[j], tau=self.tau)
        left, right = 2 * self.edge_weight * edges[i], edges[j]

        def direction(X: Tensor) -> Tensor:
            return torch.baddbmm(M_hat, left @ X, right)

        return self._iterate(direction, M_hat, mask[i], mask[j].to(M_hat))

    def _iterate(self, direction: Direction, start: Tensor, mask: Tensor, columns: Tensor) -> Tensor:
        """Iterate to convergence, at most 50 times. The row and column masses are computed once."""
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
) -> UniverseLiteralAdapter:
    """Build the adapter from the part "prior"."""
    prior = prior_from_part(part)
    split.require_split(network)
    if variant == "random-universe":
        prior = prior.with_random_universe()
    return UniverseLiteralAdapter(network, prior, lr=lr, edge_weight=edge_weight, tau=tau, variant=variant)


def _is_finite(x: Tensor) -> bool:
    """True if all entries are finite. The maximum norm is NaN or infinite if any entry is."""
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
    access="source labels",
    paper="Lv et al., CVPR 2025",
    origin="lr 1e-3, τ 0.05: the paper's; λ ½: its code's; 50 iterations: this project, the paper gives no number",
    options={
        "lr": Option("learning rate of SGD with momentum 0.9, for all parameters", "the paper: 1e-3", WEIGHT),
        "edge_weight": Option(
            "λ, weight of the edge term in the matching's update", "the authors' code: 1/2", WEIGHT
        ),
        "tau": Option("temperature of Sinkhorn and of the loss", "the paper: 0.05", Range(0.0, above=True)),
        "variant": Option(
            "full, or an ablation: which of universe, class mask or matching between images is left out or replaced",
            "this project; names after the ablations of the paper",
        ),
    },
    needs=("BatchNorm", "encode/decode", "batch ≥ 2"),
    parts=("prior",),
)
