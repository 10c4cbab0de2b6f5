"""The method "universe-gradient": Algorithm 3 of the paper, changed so that it does not drift.

After Lv et al., Test-Time Domain Generalization via Universe Learning, CVPR 2025. Changes (docs/decisions.md):

* A frozen copy of the source network labels the nodes, so that the adapting network does not learn from its own errors.
* The universe enters every iteration of the matching as a unary term, not only its starting point.
* The loss is the cross-entropy between the nodes' scores and their joint matching. It has a gradient where the
  printed Eq. 12 has none.
* Only γ and β of BatchNorm are updated, under slightly mixed statistics.
* The prediction is the average of the source network's and the adapted network's probabilities.

The method is kept as a baseline and for its ablations. On real sites it gains no more than the same step with a random
universe (docs/decisions.md), which is why `universe-choice` chooses among predictions instead.
"""

import copy
from collections import deque
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.adaptation.adapter import GradientAdapter, Images, Logits, Method
from ttdg.adaptation.options import SHARE, WEIGHT, Option
from ttdg.matching import universe_loss
from ttdg.networks import batchnorm, feature_maps
from ttdg.networks.batchnorm.batched import BatchedMixMode, SourceAndMixMode
from ttdg.prior import MorphologyPrior, Nodes
from ttdg.types import Part

Variant = Literal["full", "no-universe", "random-universe", "no-class-mask", "pairwise", "no-consensus"]


class UniverseGradientAdapter(GradientAdapter):
    """Matches the graphs of a batch to the frozen universe, and trains γ, β so that nodes score as they are matched."""

    def __init__(
        self, network: nn.Module, prior: MorphologyPrior, *, lr: float, alpha: float, trust: float, labelling: float,
        average: bool, remember: int, variant: Variant,
    ) -> None:  # fmt: skip
        self.teacher: nn.Module = copy.deepcopy(network).eval().requires_grad_(False)
        self.prior = prior.requires_grad_(False).to(next(network.parameters()).device)
        self.trust, self.labelling, self.average, self.variant = trust, labelling, average, variant
        self.memory: deque[Nodes] = deque(maxlen=remember)
        batchnorm.use(network, batchnorm.EVAL)  # raises if the network has no BatchNorm
        self.mode, self.both = BatchedMixMode(network, alpha), SourceAndMixMode(self.teacher, alpha)
        batchnorm.use(network, self.mode)
        batchnorm.use(self.teacher, self.both)
        super().__init__(network, self.matching_loss, batchnorm.affine_parameters(network), lr=lr)

    def __call__(self, images: Images) -> Logits:
        """Update γ, β on the batch; return the log of the averaged probabilities."""
        source, teacher = self._teacher_predictions(images)
        self.mode.copies.refresh()
        with torch.enable_grad():
            logits, maps = feature_maps(self.network, images, self.prior.spec.levels)
            loss = self.objective(logits, maps, teacher)
        self._update(loss)
        return self._averaged(source, logits.detach())

    @torch.no_grad()
    def predict_frozen(self, images: Images) -> Logits:
        """Return the log of the averaged probabilities without an update; no graph is remembered."""
        source, _ = self._teacher_predictions(images)
        self.mode.copies.refresh()
        return self._averaged(source, self.network(images))

    def _averaged(self, source: Tensor, adapted: Logits) -> Logits:
        P = adapted.softmax(1)
        return ((source + P) / 2 if self.average else P).clamp(min=1e-7).log()

    def matching_loss(self, logits: Logits, maps: dict[str, Tensor], teacher: Tensor) -> Tensor:
        """L = −Σ U* log softmax(𝒱𝒰ᵀ/τ) − Σ T log p, where T is the label that the matching gives each node."""
        prior = self.prior
        nodes = prior.nodes(prior.project(maps, logits.shape[2:]), teacher.argmax(1))
        node_probabilities = _sample_at_nodes(teacher, nodes)
        U = self._match(nodes, node_probabilities)
        if self.variant == "pairwise":
            target = self._neighbour_labels(nodes)
        elif self.variant == "no-universe":
            target = node_probabilities
        else:
            target = prior.by_label(U.mT).mT
        log_p = _sample_at_nodes(logits.log_softmax(1), nodes)
        rows = nodes.mask.sum().clamp(min=1)
        loss = -self.labelling * (target * log_p * nodes.mask[..., None]).sum() / rows
        if self.variant not in ("no-universe", "pairwise"):
            loss = loss + universe_loss(
                nodes.features, prior.universe_points(), U, nodes.mask, tau=prior.spec.tau
            )
        return loss

    def _match(self, nodes: Nodes, node_probabilities: Float[Tensor, "b n l"]) -> Float[Tensor, "b n d"]:
        """Match the graphs of the batch jointly with the remembered graphs; return the rows of the batch."""
        prior, tau = self.prior, self.prior.spec.tau
        S = prior.scores(nodes, typed=False)
        if self.variant != "no-class-mask":
            S = S + tau * self.trust * _labels_to_points(prior, node_probabilities.clamp(min=1e-4).log())
        detached = Nodes(nodes.features.detach().nan_to_num(), nodes.labels, nodes.mask, nodes.coordinates)
        graphs = [detached, *self.memory]
        unary = torch.cat([S, *(prior.scores(old) for old in self.memory)]) if self.memory else S
        joint = Nodes(*(torch.cat(parts) for parts in zip(*map(_fields, graphs), strict=True)))
        if self.memory.maxlen:
            self.memory.append(detached)
        return prior.match(joint, unary.detach(), tau=tau, iterations=3)[: len(S)]

    def _neighbour_labels(self, nodes: Nodes) -> Float[Tensor, "b n l"]:
        """Labels of the most similar nodes in the other graphs, for the variant without a universe."""
        votes = self.prior.votes(replace(nodes, labels=nodes.mask.long(), features=nodes.features.detach()))
        one_hot = F.one_hot((nodes.labels - 1).clamp(min=0), self.prior.spec.tissues).to(votes)
        one_hot = torch.cat([one_hot[..., :1] + one_hot[..., -1:], one_hot[..., 1:-1]], -1)
        labels = torch.einsum("ijkl,jlc->ikc", votes, one_hot)
        return labels / labels.sum(-1, keepdim=True).clamp(min=1e-6)

    @torch.no_grad()
    def _teacher_predictions(self, images: Images) -> tuple[Tensor, Tensor]:
        """Probabilities of the frozen network with source statistics and with mixed statistics, in one pass."""
        self.both.copies.refresh()
        both = self.teacher(images.repeat_interleave(2, 0)).softmax(1)
        return both[::2], both[1::2]

    def reset(self) -> None:
        """Restore the source model and forget the remembered graphs."""
        super().reset()
        self.memory.clear()


def universe_gradient(
    network: nn.Module,
    part: Part,
    *,
    lr: float = 1e-3,
    alpha: float = 0.1,
    trust: float = 1.0,
    labelling: float = 1.0,
    average: bool = True,
    remember: int = 0,
    variant: Variant = "full",
) -> UniverseGradientAdapter:
    """Build the adapter from the part "prior"."""
    prior = MorphologyPrior.from_part(part)
    if variant == "random-universe":
        prior = prior.with_random_universe()
    if variant == "no-consensus":
        prior.spec = replace(prior.spec, consensus=0.0)
    return UniverseGradientAdapter(
        network, prior, lr=lr, alpha=alpha, trust=trust, labelling=labelling, average=average,
        remember=remember, variant=variant,
    )  # fmt: skip


def _sample_at_nodes(maps: Float[Tensor, "b l h w"], nodes: Nodes) -> Float[Tensor, "b n l"]:
    """Values of the maps at the coordinates of the nodes, by bilinear interpolation."""
    grid = nodes.coordinates.flip(-1)[:, :, None] * 2 - 1
    return F.grid_sample(maps, grid, align_corners=False)[..., 0].mT


def _labels_to_points(prior: MorphologyPrior, by_label: Float[Tensor, "b n l"]) -> Float[Tensor, "b n d"]:
    """Repeat the value of each label for each of its universe points; the ring takes the value of the background."""
    tissues = torch.cat([by_label, by_label[..., :1]], -1)
    return tissues.repeat_interleave(prior.spec.points, -1)


def _fields(nodes: Nodes) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return nodes.features, nodes.labels, nodes.mask, nodes.coordinates


STUDY = "this project: a first study on other sites"
METHOD = Method(
    build=universe_gradient,
    summary="trains BatchNorm's γ, β on the joint matching to the frozen universe; averages with the source prediction",
    adapts="BatchNorm γ, β",
    norm="MIX(alpha)",
    memory=True,
    forwards=3,
    backwards=1,
    predict="before",
    access="source labels",
    single_precision=True,
    paper="Lv et al., CVPR 2025",
    origin="ours: lr, α and the averaging as in a first study on other sites",
    published=None,
    options={
        "lr": Option("learning rate of Adam", STUDY, WEIGHT),
        "alpha": Option("weight of the batch statistics in BatchNorm", STUDY, SHARE),
        "trust": Option(
            "weight of the frozen network's labels in the matching; 0 matches by features only",
            "this project",
            WEIGHT,
        ),
        "labelling": Option(
            "weight of the loss term that trains each node's prediction towards its matched label",
            "this project",
            WEIGHT,
        ),
        "average": Option("average the prediction with that of the source network", STUDY),
        "remember": Option(
            "number of earlier batches whose graphs are matched together with the current batch",
            "this project: 0, no memory",
            WEIGHT,
        ),
        "variant": Option(
            "full, or an ablation: which of universe, class mask or matching between images is left out or replaced",
            "this project; names after the ablations of the paper",
        ),
    },
    needs=("BatchNorm",),
    parts=("prior",),
)
