"""Algorithm 1 of the paper as printed: the universe 𝒰 without tissues, HiPPI (Algorithm 2), and L(𝒰) of Eq. 9.

Lv et al., Test-Time Domain Generalization via Universe Learning, CVPR 2025. It is kept beside `MorphologyPrior`, so
that "universe-literal" (Algorithm 3) adapts with a universe that the paper's own training has made.

As printed: nodes inside the foreground masks, per class; 𝒰 starts at 1/d + 10⁻³z; d = 100 (n + 1)/s with s the
sampling step; U starts as Sinkhorn(𝒱𝒰ᵀ, τ = 0.05); 𝐀̃ = 𝐖ᵀ𝐀𝐖 (Eq. 7); V = 𝐀̃𝐔𝐔ᵀ𝐀̃𝐔 goes to Sinkhorn as it is;
θ = 10⁻⁵; L(𝒰) is a sum over nodes, not a mean; h = 256.

What the paper leaves open, or what cannot be run as printed, is decided as follows:

* D of Eq. 5 is 1 − cos with a factor 1/(ε + D), and 𝒜 is symmetric with row sums of at most 1 (`Edges`): the printed D
  is a similarity whose inverse has poles. DropEdge has the rate 0.1 of the authors' code.
* The nonlinear projection is that of `GraphPrior`: levels are projected, added and scaled to unit length before φ
  samples, where the paper samples on every level.
* W_kl is 1 for equal labels and 0 otherwise. The product of integer labels would weight class 2 four times.
* Sinkhorn has a slack row, because no doubly stochastic matrix exists for n_i ≠ d; 20 iterations are 10 sweeps.
* θ is relative to √n_i, and HiPPI ends after 50 iterations: it need not converge for an 𝒜 that is not positive
  semidefinite.
* U* is a constant target. The gradient of L(𝒰) reaches 𝒰, the projection and the network, but not the weights of 𝒜.
* α, which has no value in the paper, is 10⁻⁴, the factor of the authors' code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ttdg.matching import (
    Solution,
    assign,
    edge_direction,
    label_gram_direction,
    ridge_loss,
    ridge_universe,
    solve,
    within_class,
)
from ttdg.matching.solver import Direction
from ttdg.prior.graph_prior import LITERAL, GraphPrior, GraphSpec, default_levels, spec_of
from ttdg.prior.loss import gather_nodes
from ttdg.prior.module import MorphologyPrior
from ttdg.prior.sampling import Nodes, sample_nodes
from ttdg.types import GraphBatch, Part

CLASS_MATRICES: Mapping[str, Callable[[GraphBatch], Direction]] = {
    "printed": lambda graphs: partial(label_gram_direction, graphs.edges, graphs.labels),
    "masked": lambda graphs: partial(edge_direction, within_class(graphs.edges, graphs.labels)),
    "none": lambda graphs: partial(edge_direction, graphs.edges),
}
"""The direction of HiPPI by the use of W: 𝐀̃ = 𝐖ᵀ𝐀𝐖 (Eq. 7), 𝒜_i ∘ W_ii, or 𝐀 (Eq. 6, the paper's "w/o W")."""


@dataclass(frozen=True)
class LiteralSpec(GraphSpec):
    """The settings from which a `LiteralPrior` is built; 𝒰 has d = labels · points rows.

    The labels are the n classes and the background, so that d = 100 (n + 1)/s for points = 100/s nodes per class.
    """

    node_dim: int = 256
    per_tissue: int = 40
    class_matrix: str = "printed"  # a key of CLASS_MATRICES
    tau: float = 0.05
    theta: float = 1e-5  # convergence of HiPPI
    sweeps: int = 10  # of Sinkhorn
    iterations: int = 50  # of HiPPI, at most
    decay: float = 1e-4  # α

    @property
    def size(self) -> int:
        """d, the number of universe points."""
        return self.labels * self.points


class LiteralPrior(GraphPrior):
    """The universe of Algorithm 1: raw rows that belong to no class."""

    spec: LiteralSpec

    def __init__(self, spec: LiteralSpec) -> None:
        super().__init__(spec, lambda: printed_start(spec.size, spec.node_dim))

    def universe_points(self) -> Float[Tensor, "d h"]:
        """𝒰 itself; the paper does not normalise it."""
        return self.universe

    def first_universe(self, generator: torch.Generator) -> Float[Tensor, "d h"]:
        """1/d + 10⁻³z, as before training: the paper's "w/o priors"."""
        return printed_start(self.spec.size, self.spec.node_dim, generator)

    def nodes(self, projected: Float[Tensor, "b c y x"], labels: Int[Tensor, "b h w"]) -> Nodes:
        """Evenly spread nodes of every foreground class that is present; the background gives none.

        With a single label, as in a classification, the nodes are spread over the whole map, whatever its labels are.
        """
        classes = range(1, self.spec.labels)
        if self.spec.labels == 1:
            classes, labels = range(1), torch.zeros_like(labels)
        return sample_nodes([projected], labels, classes=classes, per_class=self.spec.per_tissue)

    @torch.no_grad()
    def match(self, nodes: Nodes) -> Float[Tensor, "b n d"]:
        """U*: lines 15 to 18 of Algorithm 1."""
        return self.hippi(nodes).matching

    @torch.no_grad()
    def hippi(self, nodes: Nodes) -> Solution:
        """Algorithm 2 from U_i = Sinkhorn(𝒱_i 𝒰ᵀ, τ), with its objective (Eq. 7) and the number of iterations."""
        spec, graphs = self.spec, self.graphs(nodes)
        project = partial(assign, max_sweeps=spec.sweeps)
        return solve(
            CLASS_MATRICES[spec.class_matrix](graphs),
            project(self.scores_of_all(nodes), nodes.mask, tau=spec.tau),
            nodes.mask, tau=spec.tau, tolerance=spec.theta, max_iterations=spec.iterations, project=project,
        )  # fmt: skip

    @classmethod
    def from_part(cls, part: Part) -> "LiteralPrior":
        """The prior that `to_part` stored, in eval mode."""
        return cls(spec_of(LiteralSpec, part)).with_state(part)


@dataclass(frozen=True)
class UniverseFit:
    """Eq. 9 per node, for the matching that the trained 𝒰 leads to: how far training has taken 𝒰."""

    start: float  # at 𝒰 = 1/d + 10⁻³z
    trained: float
    best: float  # at the 𝒰 that minimises it


def printed_start(
    count: int, width: int, generator: torch.Generator | None = None
) -> Float[Tensor, "count width"]:
    """𝒰 = 1/d + 10⁻³z with standard normal z (Algorithm 1, line 13)."""
    return 1 / count + 1e-3 * torch.randn(count, width, generator=generator)


def literal_prior_for(widths: Mapping[str, int], labels: int, **settings: Any) -> LiteralPrior:
    """An untrained literal prior for feature maps of these widths; `settings` are fields of `LiteralSpec`."""
    settings.setdefault("levels", default_levels(widths, LiteralSpec.levels))
    return LiteralPrior(LiteralSpec(labels, tuple(widths[name] for name in settings["levels"]), **settings))


def prior_from_part(part: Part) -> LiteralPrior | MorphologyPrior:
    """The prior of a checkpoint, whichever training has made it."""
    return (LiteralPrior if LITERAL in part.settings else MorphologyPrior).from_part(part)


def literal_loss(
    prior: LiteralPrior, maps: dict[str, Tensor], labels: Int[Tensor, "b h w"]
) -> Float[Tensor, ""]:
    """L(𝒰) of a batch: Eq. 9 as printed, with U* from HiPPI over the graphs of all processes.

    Processes average their gradients. Their sums over nodes are therefore multiplied by the number of processes, and
    α‖𝒰‖² is counted once.
    """
    nodes = prior.nodes(prior.project(maps, labels.shape[1:]), labels)
    all_nodes, rows = gather_nodes(nodes)
    U, processes = prior.match(all_nodes)[rows], len(all_nodes.mask) // len(nodes.mask)
    loss = ridge_loss(nodes.features, prior.universe, U, nodes.mask, prior.spec.decay / processes)
    return loss * processes


@torch.no_grad()
def universe_fit(prior: LiteralPrior, nodes: Nodes) -> UniverseFit:
    """Compare Eq. 9 at the first, the trained and the best 𝒰, for the nodes of some images."""
    V, mask, decay = nodes.features.double(), nodes.mask, prior.spec.decay
    U = prior.match(nodes).double()
    first = prior.first_universe(torch.Generator().manual_seed(0))
    universes = (first.to(V), prior.universe.double(), ridge_universe(V, U, mask, decay))
    count = int(mask.sum().clamp(min=1))
    return UniverseFit(*(float(ridge_loss(V, one, U, mask, decay)) / count for one in universes))
