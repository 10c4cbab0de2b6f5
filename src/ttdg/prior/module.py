"""The morphology prior: the anatomy of the source sites as a universe of points, to which images are matched.

Nodes are features of a trained network that are projected to unit vectors. The universe 𝒰 holds `points` unit vectors
for each *tissue*. Tissues are the labels of the benchmark and the ring of background around the structures, which looks
different from other background. A node can be matched only to points of its tissue. The prior is separate from the
network, whose weights remain those that all methods use.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from ttdg.errors import UserError
from ttdg.matching import assign, qap_direction, same_class, same_class_pairs, solve, stacked, universe_scores
from ttdg.prior.graph_prior import LITERAL, GraphPrior, GraphSpec, default_levels, spec_of
from ttdg.prior.sampling import Nodes, sample_nodes
from ttdg.types import Part

RING_CELLS = 4  # width of the ring around structures in cells of the node grid (16 pixels)


@dataclass(frozen=True)
class PriorSpec(GraphSpec):
    """The settings from which a `MorphologyPrior` is built; 𝒰 has d = (labels + 1) · points rows."""

    tau: float = 0.1  # temperature of the posterior and the loss
    tau_match: float = 0.05  # temperature of the matching
    consensus: float = 0.5  # μ, the weight of the votes of other graphs
    edge_weight: float = 0.0  # λ, the weight of the edges
    sweeps: int = 10  # maximum Sinkhorn sweeps
    iterations: int = 2  # of the matching solver

    @property
    def tissues(self) -> int:
        """Number of tissues: the labels and the ring."""
        return self.labels + 1


class MorphologyPrior(GraphPrior):
    """A prior whose universe points have unit length and belong to one tissue each.

    If `typed` is False, nodes can be matched to points of any tissue.
    """

    spec: PriorSpec

    def __init__(self, spec: PriorSpec) -> None:
        super().__init__(spec, lambda: random_directions(spec.tissues * spec.points, spec.node_dim))
        self.typed = True
        tissues = torch.arange(1, spec.tissues + 1).repeat_interleave(spec.points)
        self.register_buffer("tissue_of", tissues, persistent=False)
        self.tissue_of: Tensor

    def universe_points(self) -> Float[Tensor, "d h"]:
        """The universe embeddings, normalised to unit length."""
        return F.normalize(self.universe, dim=1)

    def nodes(self, projected: Float[Tensor, "b c y x"], labels: Int[Tensor, "b h w"]) -> Nodes:
        """Sample evenly spread nodes of every tissue that is present."""
        tissues = add_ring_label(labels, self.spec.labels, projected.shape[2:])
        classes = range(self.spec.tissues)
        return sample_nodes([projected], tissues, classes=classes, per_class=self.spec.per_tissue)

    def scores(self, nodes: Nodes, *, typed: bool = True) -> Float[Tensor, "b n d"]:
        """𝒱𝒰ᵀ. If `typed` and `self.typed` are True, points of other tissues are excluded."""
        points = self.universe_points()
        allowed = same_class(nodes.labels, self.tissue_of) if typed and self.typed else None
        return universe_scores(nodes.features, points, allowed)

    @torch.no_grad()
    def match(
        self,
        nodes: Nodes,
        unary: Float[Tensor, "b n d"] | None = None,
        *,
        tau: float | None = None,
        iterations: int | None = None,
    ) -> Float[Tensor, "b n d"]:
        """U*: the joint matching of all graphs to the universe.

        Args:
            nodes: the nodes of all graphs.
            unary: scores of nodes against universe points; by default 𝒱𝒰ᵀ within each tissue.
            tau: temperature; by default that of the settings.
            iterations: solver iterations; by default those of the settings.
        """
        spec, tau = self.spec, tau or self.spec.tau_match
        S = self.scores(nodes) if unary is None else unary
        U = assign(S, nodes.mask, tau=tau, max_sweeps=spec.sweeps)
        if len(U) < 2 or (spec.consensus == 0 and spec.edge_weight == 0):
            return U
        votes = stacked(self.votes(nodes)) if spec.consensus else None
        edges = self.graphs(nodes).edges if spec.edge_weight else S.new_zeros(len(U), U.shape[1], U.shape[1])

        return solve(
            partial(qap_direction, edges, votes, edge_weight=spec.edge_weight, unary=S), U, nodes.mask, tau=tau,
            tolerance=0.0, max_iterations=iterations or spec.iterations,
            project=partial(assign, max_sweeps=spec.sweeps),
        ).matching  # fmt: skip

    def votes(self, nodes: Nodes) -> Float[Tensor, "m m n n"]:
        """Soft pairwise matchings, scaled by μ/(m−1): for each other graph a softmax over nodes of the same tissue."""
        m = len(nodes.features)
        M = self.affinity(nodes.features, nodes.mask) / 0.1
        like = same_class_pairs(nodes.labels)
        own = torch.eye(m, dtype=torch.bool, device=M.device)[:, :, None, None]
        P = M.masked_fill(~like, -1e30).softmax(-1) * like
        return P.masked_fill(own, 0.0) * (self.spec.consensus / max(m - 1, 1))

    def posterior(self, projected: Float[Tensor, "b h y x"]) -> Float[Tensor, "b l y x"]:
        """P(label | node): a softmax over the universe points, summed over the points of each label."""
        shares = (self.cosines(projected) / self.spec.tau).softmax(1)
        return self.by_label(shares)

    def cosines(self, projected: Float[Tensor, "b h y x"]) -> Float[Tensor, "b d y x"]:
        """Cosine similarity of every position to every universe point."""
        return torch.einsum("bhyx,dh->bdyx", projected, self.universe_points())

    def by_label(self, shares: Float[Tensor, "b d *rest"]) -> Float[Tensor, "b l *rest"]:
        """Sum over the universe points of each label; the ring counts as background."""
        tissues = shares.unflatten(1, (self.spec.tissues, self.spec.points)).sum(2)
        return torch.cat([tissues[:, :1] + tissues[:, -1:], tissues[:, 1:-1]], 1)

    def energy(self, nodes: Nodes, U: Float[Tensor, "b n d"] | None = None) -> Float[Tensor, "b"]:
        """Mean cosine distance of each graph's nodes to the universe points they are matched to."""
        U = self.match(nodes) if U is None else U
        cosine = (U * self.scores(nodes, typed=False)).sum(2)
        real = nodes.mask.sum(1).clamp(min=1)
        return ((U.sum(2) - cosine) * nodes.mask).sum(1) / real

    @classmethod
    def from_part(cls, part: Part) -> "MorphologyPrior":
        """The prior that `to_part` stored, in eval mode; `UserError` for a universe of the paper's literal training."""
        if LITERAL in part.settings:
            raise UserError(
                "the universe of this model was trained by the paper's Algorithm 1 as printed, and its points belong "
                "to no tissue, which is needed here; train a model with the universe loss 'repaired'"
            )
        return cls(spec_of(PriorSpec, part)).with_state(part)

    def first_universe(self, generator: torch.Generator) -> Float[Tensor, "d h"]:
        """Random rows of unit length."""
        return random_directions(len(self.universe), self.spec.node_dim, generator)

    def without_class_mask(self) -> "MorphologyPrior":
        """A copy in which nodes can be matched to points of any tissue, as an ablation."""
        other = copy.deepcopy(self)
        other.typed = False
        return other


def prior_for(widths: Mapping[str, int], labels: int, **settings: Any) -> MorphologyPrior:
    """An untrained prior for feature maps of these widths.

    Args:
        widths: number of channels of each level; for a network, those of `level_channels`.
        labels: labels of the benchmark, including background.
        **settings: fields of `PriorSpec`.
    """
    settings.setdefault("levels", default_levels(widths, PriorSpec.levels))
    return MorphologyPrior(PriorSpec(labels, tuple(widths[name] for name in settings["levels"]), **settings))


def add_ring_label(labels: Int[Tensor, "b h w"], count: int, size: Sequence[int]) -> Int[Tensor, "b h w"]:
    """Labels in which background within `RING_CELLS` grid cells of a structure has the value `count`.

    `size` is the (height, width) of the node grid.
    """
    near = F.max_pool2d(
        F.adaptive_max_pool2d((labels > 0)[:, None].float(), tuple(size)), 2 * RING_CELLS + 1, 1, RING_CELLS
    )
    near = F.interpolate(near, size=labels.shape[1:])[:, 0] > 0
    return torch.where(near & (labels == 0), count, labels)


def random_directions(
    count: int, width: int, generator: torch.Generator | None = None
) -> Float[Tensor, "count width"]:
    """Random vectors of unit length."""
    return F.normalize(torch.randn(count, width, generator=generator), dim=1)
