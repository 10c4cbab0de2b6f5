"""DLTTA: a learning rate for each batch, from how far its prediction lies from those of similar images before it.

Yang et al., DLTTA: Dynamic Learning Rate for Test-Time Adaptation on Cross-Domain Medical Images, TMI 2022.

Decisions: the base is entropy on BatchNorm's γ and β (the release's segmentation adapts auto-encoders trained at source
time, and its prostate script has no dynamic rate); all K neighbours are averaged (a misspelt name in the release
keeps the first only); the memory holds |M| images, not |M|+1, and the rate is η₀ until it holds K, or as many as it
can; a key is the deepest map, pooled to 1×1 and to 4×4; logits are kept at a quarter of the resolution; exp(D) is
clipped to [0.1, 10], while η₀·D/2, published for classification (`rule="linear"`), is taken as it is, 0 included.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.adaptation.memory import Memory
from ttdg.networks import batchnorm, split

Rule = Literal["exponential", "linear"]
SHARPNESS = 0.2  # temperature of the softmax over neighbours' cosines
FACTORS = (0.1, 10.0)  # exp(D) stays within these


def discrepancy(
    logits: Logits, remembered: Logits, temperature: float, head: losses.Head
) -> Float[Tensor, ""]:
    """KL(p‖p̃) + KL(p̃‖p), mean over everything; the temperature softens the current prediction alone."""
    z = [logits / temperature, remembered]
    if head == "sigmoid":  # each channel is a choice between yes and no
        z = [torch.stack([x, -x], 1) / 2 for x in z]
    log_p, log_q = (F.log_softmax(x, 1) for x in z)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(1).mean()


def dynamic_rate(lr: float, D: float, rule: Rule) -> float:
    """η₀·exp(D), clipped, or η₀·D/2 as published for classification; never less for more."""
    if rule == "linear":
        return lr * max(D, 0.0) / 2  # rounding may leave a D of 0 below it
    return lr * min(max(math.exp(min(D, 100.0)), FACTORS[0]), FACTORS[1])


def keys_of(deepest: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d"]:
    coarse = F.adaptive_avg_pool2d(deepest, 4).flatten(1)
    return torch.cat([deepest.mean((2, 3)), coarse], 1)


def quarter(logits: Float[Tensor, "b l h w"]) -> Float[Tensor, "b l y x"]:
    h, w = logits.shape[-2:]
    return F.adaptive_avg_pool2d(logits, (max(1, h // 4), max(1, w // 4)))


class Dltta(GradientAdapter):
    def __init__(
        self, network: nn.Module, *, lr: float, steps: int, capacity: int, neighbours: int, temperature: float,
        rule: Rule, head: losses.Head,
    ) -> None:  # fmt: skip
        self.neighbours = min(neighbours, capacity)
        self.temperature, self.rule, self.head = temperature, rule, head
        self.memory = Memory(capacity)
        batchnorm.use(split.require_split(network), batchnorm.BATCH)

        def objective(logits: Logits) -> Tensor:
            return losses.entropy(logits, head).mean()

        super().__init__(network, objective, batchnorm.affine(network), lr=lr, steps=steps, predict="after")

    def __call__(self, images: Images) -> Logits:
        for _ in range(self.steps):
            with torch.enable_grad():
                features = split.encode(self.network, images)
                logits = split.decode(self.network, features, images)
                loss = self.objective(logits)
            keys = keys_of(features[-1].detach())
            finite = self._step(loss, keys, quarter(logits.detach()))
        with torch.no_grad():
            answer = self.network(images)
        if finite:
            self.memory.push(keys, quarter(answer))
        return answer

    def _step(self, loss: Tensor, keys: Tensor, logits: Logits) -> bool:
        """One step at this batch's rate; whether there was anything to step on. The host waits once."""
        self.loss, ready = loss.detach(), self._ready(keys, logits)
        D = self._discrepancy(keys, logits) if ready else torch.zeros_like(self.loss)
        value, apart = torch.stack([self.loss, D]).tolist()
        if not (math.isfinite(value) and math.isfinite(apart)):
            return False
        self.rate = dynamic_rate(self.lr, apart, self.rule) if ready else self.lr
        self.apply(self.gradients(loss), self.rate)
        return True

    def _ready(self, keys: Tensor, logits: Logits) -> bool:
        full = len(self.memory) >= self.neighbours and self.memory.fits(keys)
        return full and self.memory.columns[1].shape[1:] == logits.shape[1:]

    def _discrepancy(self, keys: Tensor, logits: Logits) -> Float[Tensor, ""]:
        cosines, rows = self.memory.nearest(keys, self.neighbours)
        weights = (cosines / SHARPNESS).softmax(1)
        remembered = torch.einsum("bk,bk...->b...", weights, self.memory.columns[1][rows])
        return discrepancy(logits, remembered, self.temperature, self.head)

    def reset(self) -> None:
        super().reset()
        self.memory.clear()
        self.rate = self.lr


def dltta(
    network: nn.Module,
    *,
    lr: float = 1e-4,
    steps: int = 1,
    capacity: int = 20,
    neighbours: int = 8,
    temperature: float = 4.0,
    rule: Rule = "exponential",
    head: losses.Head = "softmax",
) -> Adapter:
    return Dltta(
        network, lr=lr, steps=steps, capacity=capacity, neighbours=neighbours, temperature=temperature,
        rule=rule, head=head,
    )  # fmt: skip


METHOD = Method(
    build=dltta,
    summary="TENT with a rate for each batch, by how far its prediction lies from remembered ones",
    adapts="BatchNorm γ, β",
    norm="BATCH",
    memory=True,
    forwards=2,
    backwards=1,
    predict="after",
    paper="Yang et al., TMI 2022",
    origin="memory 20, 8 neighbours, temperature 4, exp(D) as published for segmentation; lr 1e-4 with Adam on the "
    "entropy base (published 1e-3) is ours",
    needs=("BatchNorm", "encode/decode"),
)
