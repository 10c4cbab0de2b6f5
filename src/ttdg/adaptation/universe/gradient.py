"""Universe learning at test time by gradient: Algorithm 3 in the form that does not drift.

After Lv et al., Test-Time Domain Generalization via Universe Learning, CVPR 2025. Decisions (docs/decisions.md): a
frozen copy of the source network names the nodes' tissues, so that the adapting network does not teach itself its own
errors; the universe stays in every iteration as a unary term instead of being a starting point that is forgotten; the
loss is the cross-entropy of the nodes' scores to their joint matching, which has a gradient where the printed Eq. 12
has none; only BatchNorm's γ, β move, under mildly mixed statistics; the answer is the mean of the source's and the
adapted. Kept as the floor and for its named ablations: on real sites it gains no more than the same step with a random
universe (docs/decisions.md), which is why `universe` chooses instead of descending.
"""

import copy
from collections import deque
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.graphs import Nodes
from ttdg.matching import universe_loss
from ttdg.networks import batchnorm, split
from ttdg.networks.batchnorm.batched import Mixing, SourceAndMixed
from ttdg.prior import MorphologyPrior, feature_maps
from ttdg.types import Part

Variant = Literal["full", "no-universe", "random-universe", "no-class-mask", "pairwise", "no-consensus"]


class UniverseAdapter(GradientAdapter):
    """Match the batch's graphs to the frozen universe; move γ, β so that nodes score as they match."""

    def __init__(
        self, network: nn.Module, prior: MorphologyPrior, *, lr: float, alpha: float, trust: float, labelling: float,
        average: bool, remember: int, variant: Variant,
    ) -> None:  # fmt: skip
        self.teacher: nn.Module = copy.deepcopy(network).eval().requires_grad_(False)
        self.prior = prior.requires_grad_(False).to(next(network.parameters()).device)
        self.trust, self.labelling, self.average, self.variant = trust, labelling, average, variant
        self.memory: deque[Nodes] = deque(maxlen=remember)
        batchnorm.use(network, batchnorm.EVAL)  # says so where there is nothing to use
        self.mode, self.both = Mixing(network, alpha), SourceAndMixed(self.teacher, alpha)
        batchnorm.use(network, self.mode)
        batchnorm.use(self.teacher, self.both)
        super().__init__(network, self.matching_loss, batchnorm.affine(network), lr=lr)

    def __call__(self, images: Images) -> Logits:
        source, teacher = self._teach(images)
        self.mode.copies.refresh()
        with torch.enable_grad():
            logits, maps = feature_maps(self.network, images)
            loss = self.objective(logits, maps, teacher)
        self._update(loss)
        adapted = logits.detach().softmax(1)
        return ((source + adapted) / 2 if self.average else adapted).clamp(min=1e-7).log()

    def matching_loss(self, logits: Logits, maps: dict[str, Tensor], teacher: Tensor) -> Tensor:
        """L = −Σ U* log softmax(𝒱𝒰ᵀ/τ) − Σ T log p, where T is the label the matching gives each node."""
        prior = self.prior
        nodes = prior.nodes(prior.project(maps, logits.shape[2:]), teacher.argmax(1))
        believed = _at(teacher, nodes)
        U = self._matched(nodes, believed)
        target = believed if self.variant in ("no-universe", "pairwise") else prior.by_label(U.mT).mT
        if self.variant == "pairwise":
            target = self._neighbours(nodes)
        log_p = _at(logits.log_softmax(1), nodes)
        rows = nodes.mask.sum().clamp(min=1)
        loss = -self.labelling * (target * log_p * nodes.mask[..., None]).sum() / rows
        if self.variant not in ("no-universe", "pairwise"):
            loss = loss + universe_loss(
                nodes.features, prior.points_of_universe(), U, nodes.mask, tau=prior.spec.tau
            )
        return loss

    def _matched(self, nodes: Nodes, believed: Float[Tensor, "b n l"]) -> Float[Tensor, "b n d"]:
        """The joint matching of this batch's graphs and of those remembered; rows of this batch."""
        prior, tau = self.prior, self.prior.spec.tau
        S = prior.scores(nodes, typed=False)
        if self.variant != "no-class-mask":
            S = S + tau * self.trust * _by_point(prior, believed.clamp(min=1e-4).log())
        detached = Nodes(nodes.features.detach().nan_to_num(), nodes.labels, nodes.mask, nodes.coordinates)
        together = [detached, *self.memory]
        unary = torch.cat([S, *(prior.scores(old) for old in self.memory)]) if self.memory else S
        joint = Nodes(*(torch.cat(parts) for parts in zip(*map(_fields, together), strict=True)))
        if self.memory.maxlen:
            self.memory.append(detached)
        return prior.match(joint, unary.detach(), tau=tau, iterations=3)[: len(S)]

    def _neighbours(self, nodes: Nodes) -> Float[Tensor, "b n l"]:
        """Without a universe: what the other graphs' most similar nodes are called, pair by pair."""
        votes = self.prior.votes(replace(nodes, labels=nodes.mask.long(), features=nodes.features.detach()))
        names = F.one_hot((nodes.labels - 1).clamp(min=0), self.prior.spec.tissues).to(votes)
        names = torch.cat([names[..., :1] + names[..., -1:], names[..., 1:-1]], -1)
        said = torch.einsum("ijkl,jlc->ikc", votes, names)
        return said / said.sum(-1, keepdim=True).clamp(min=1e-6)

    @torch.no_grad()
    def _teach(self, images: Images) -> tuple[Tensor, Tensor]:
        """The frozen network's answers, with the source's statistics and with mixed ones, in one pass."""
        self.both.copies.refresh()
        twice = self.teacher(images.repeat_interleave(2, 0)).softmax(1)
        return twice[::2], twice[1::2]

    def reset(self) -> None:
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
) -> Adapter:
    prior = MorphologyPrior.from_part(part)
    split.require_split(network)
    if variant == "random-universe":
        prior = prior.with_random_universe()
    if variant == "no-consensus":
        prior.spec = replace(prior.spec, consensus=0.0)
    return UniverseAdapter(
        network, prior, lr=lr, alpha=alpha, trust=trust, labelling=labelling, average=average,
        remember=remember, variant=variant,
    )  # fmt: skip


def _at(maps: Float[Tensor, "b l h w"], nodes: Nodes) -> Float[Tensor, "b n l"]:
    """A map's values where the nodes lie."""
    where = nodes.coordinates.flip(-1)[:, :, None] * 2 - 1
    return F.grid_sample(maps, where, align_corners=False)[..., 0].mT


def _by_point(prior: MorphologyPrior, by_label: Float[Tensor, "b n l"]) -> Float[Tensor, "b n d"]:
    """What is said of a label, said of each of its universe points; the ring is background."""
    tissues = torch.cat([by_label, by_label[..., :1]], -1)
    return tissues.repeat_interleave(prior.spec.points, -1)


def _fields(nodes: Nodes) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return nodes.features, nodes.labels, nodes.mask, nodes.coordinates


METHOD = Method(
    build=universe_gradient,
    summary="joint matching to the frozen universe teaches BatchNorm's γ, β; averaged with the source's answer",
    adapts="BatchNorm γ, β",
    norm="MIX(alpha)",
    memory=True,
    forwards=3,
    backwards=1,
    predict="before",
    paper="Lv et al., CVPR 2025",
    origin="ours: lr, α and the averaging as in a first study on other sites",
    needs=("BatchNorm", "encode/decode"),
    parts=("prior",),
)
