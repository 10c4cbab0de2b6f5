"""DLTTA: TENT with a learning rate for each batch, set by the distance of its prediction from remembered ones.

Yang et al., DLTTA: Dynamic Learning Rate for Test-Time Adaptation on Cross-Domain Medical Images, TMI 2022.

Decisions: The base method is entropy minimisation on γ and β of BatchNorm. The authors' segmentation code adapts
auto-encoders trained at source time, and its prostate script has no dynamic rate. All K neighbours are averaged; a
misspelt name in the authors' code keeps the first only. The memory holds |M| images, not |M|+1. The rate is η₀ until
the memory holds K images, or as many as it can. A key is the deepest feature map pooled to 1×1 and to 4×4. Logits are
stored at a quarter of the resolution. exp(D) is clipped to [0.1, 10]. `rule="linear"` is η₀·D/2, published for
classification, without clipping, so that it may be 0.
"""

import math
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.adaptation.memory import Memory
from ttdg.adaptation.options import COUNT, HEAD, LR, POSITIVE, STEPS, Option
from ttdg.networks import batchnorm, split

Rule = Literal["exponential", "linear"]
SHARPNESS = 0.2  # temperature of the softmax over the neighbours' cosines
FACTORS = (0.1, 10.0)  # exp(D) is clipped to this interval


def discrepancy(
    logits: Logits, remembered: Logits, temperature: float, head: losses.Head
) -> Float[Tensor, ""]:
    """KL(p‖p̃) + KL(p̃‖p), averaged over images and pixels; the temperature softens only the current prediction p."""
    z = [logits / temperature, remembered]
    if head == "sigmoid":  # each channel is a two-class problem
        z = [torch.stack([x, -x], 1) / 2 for x in z]
    log_p, log_q = (F.log_softmax(x, 1) for x in z)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(1).mean()


def dynamic_rate(lr: float, D: float, rule: Rule) -> float:
    """Learning rate η₀·exp(D), clipped, or η₀·D/2; it never decreases in D."""
    if rule == "linear":
        return lr * max(D, 0.0) / 2  # rounding may give a D slightly below 0
    return lr * min(max(math.exp(min(D, 100.0)), FACTORS[0]), FACTORS[1])


def memory_keys(deepest: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d"]:
    """The deepest feature map of each image, pooled to 1×1 and to 4×4 and concatenated."""
    coarse = F.adaptive_avg_pool2d(deepest, 4).flatten(1)
    return torch.cat([deepest.mean((2, 3)), coarse], 1)


def quarter_resolution(logits: Float[Tensor, "b l h w"]) -> Float[Tensor, "b l y x"]:
    """Average-pool logits to a quarter of their height and width, at least one pixel."""
    h, w = logits.shape[-2:]
    return F.adaptive_avg_pool2d(logits, (max(1, h // 4), max(1, w // 4)))


class Dltta(GradientAdapter):
    """The adapter of DLTTA.

    State: γ and β of BatchNorm, Adam, a memory of (key, logits) of past images, and the last learning `rate`. One call
    repeats `steps` times: forward pass; entropy loss; weighted mean of the logits of the K nearest remembered images;
    discrepancy D between prediction and that mean; Adam step with the rate that D gives. Then a forward pass gives the
    prediction, and keys and new logits are pushed to the memory.
    """

    def __init__(
        self, network: nn.Module, *, lr: float, steps: int, capacity: int, neighbours: int, temperature: float,
        rule: Rule, head: losses.Head,
    ) -> None:  # fmt: skip
        self.neighbours = min(neighbours, capacity)
        self.temperature, self.rule, self.head = temperature, rule, head
        self.memory = Memory(capacity)
        batchnorm.use(split.require_split(network), batchnorm.BATCH)
        objective, parameters = partial(losses.mean_entropy, head=head), batchnorm.affine_parameters(network)
        super().__init__(network, objective, parameters, lr=lr, steps=steps, predict="after")

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch, remember it and return its logits after the update."""
        for _ in range(self.steps):
            with torch.enable_grad():
                features = split.encode(self.network, images)
                logits = split.decode(self.network, features, images)
                loss = self.objective(logits)
            keys = memory_keys(features[-1].detach())
            updated = self._step(loss, keys, quarter_resolution(logits.detach()))
        with torch.no_grad():
            prediction = self.network(images)
        if updated:
            self.memory.push(keys, quarter_resolution(prediction))
        return prediction

    def _step(self, loss: Tensor, keys: Tensor, logits: Logits) -> bool:
        """Take one step at the rate of this batch; return False if the loss is not finite. The host waits once."""
        self.loss, ready = loss.detach(), self._memory_is_ready(keys, logits)
        D = self._discrepancy(keys, logits) if ready else torch.zeros_like(self.loss)
        loss_value, D_value = torch.stack([self.loss, D]).tolist()
        if not (math.isfinite(loss_value) and math.isfinite(D_value)):
            return False
        self.rate = dynamic_rate(self.lr, D_value, self.rule) if ready else self.lr
        self.apply(self.gradients(loss), self.rate)
        return True

    def _memory_is_ready(self, keys: Tensor, logits: Logits) -> bool:
        full = len(self.memory) >= self.neighbours and self.memory.fits(keys)
        return full and self.memory.columns[1].shape[1:] == logits.shape[1:]

    def _discrepancy(self, keys: Tensor, logits: Logits) -> Float[Tensor, ""]:
        cosines, rows = self.memory.nearest(keys, self.neighbours)
        weights = (cosines / SHARPNESS).softmax(1)
        remembered = torch.einsum("bk,bk...->b...", weights, self.memory.columns[1][rows])
        return discrepancy(logits, remembered, self.temperature, self.head)

    def reset(self) -> None:
        """Return to the source, with an empty memory."""
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
    """Build the adapter of method `dltta`."""
    return Dltta(
        network, lr=lr, steps=steps, capacity=capacity, neighbours=neighbours, temperature=temperature,
        rule=rule, head=head,
    )  # fmt: skip


METHOD = Method(
    build=dltta,
    summary="TENT with a learning rate for each batch, from the distance of its prediction to remembered ones",
    adapts="BatchNorm γ, β",
    norm="BATCH",
    memory=True,
    forwards=2,
    backwards=1,
    predict="after",
    access="source-free",
    paper="Yang et al., TMI 2022",
    origin="memory 20, 8 neighbours, temperature 4, exp(D) as published for segmentation; lr 1e-4 with Adam on the "
    "entropy base (published 1e-3) is ours",
    published={"lr": 1e-3},
    options={
        "lr": LR.with_origin("this project, for Adam on the entropy base; the authors' code has 1e-3"),
        "steps": STEPS.with_origin("the authors' code"),
        "capacity": Option(
            "number of images that the memory holds", "the authors' code for OCT segmentation", COUNT
        ),
        "neighbours": Option(
            "number K of most similar remembered images", "the authors' code for OCT segmentation", COUNT
        ),
        "temperature": Option(
            "softens the current prediction before it is compared",
            "the authors' code for OCT segmentation",
            POSITIVE,
        ),
        "rule": Option(
            "learning rate from the discrepancy D: η₀·exp(D) clipped to [0.1, 10]·η₀, or η₀·D/2",
            "the authors' code: exponential for segmentation, linear for classification; clipping: this project",
        ),
        "head": HEAD,
    },
    needs=("BatchNorm", "encode/decode"),
)
