"""PASS: a prompt on the input (and one at the bottleneck), trained online, and the source's answer to fall back on.

Zhang et al., PASS: Test-Time Prompting to Adapt Styles and Semantic Shapes in Medical Image Segmentation, TMI 2024.

Each batch starts from a slow copy of what was learnt (an average whose momentum decays), takes `steps` steps that
bring the encoder's statistics to the source's, and keeps, image by image, the less uncertain of its own answer
and the source's.

Decisions: the decorator's last convolution and the value's bias start at 0, so that the untrained prompts are the
identity (published: random). The encoder's statistics do not depend on the bottleneck's prompt: by default it gets no
gradient and stays the identity, and only with `objective="entropy"` is it learnt. The slow copy holds prompts, γ and β,
its BatchNorm statistics stay the source's; Adam's moments live on. The fallback compares full entropies of the head;
`fallback="half"` is the published −Σp log p/Σp, which favours empty masks, without its weights for disc and cup.
`objective="entropy"` is after the published form for prostate, which descends the half entropy with lr 1e-2, 1 step,
δ 0.6, m_min 0.005, begins from the slow copy once a case and answers a case again with its last weights; here it is the
full entropy, batch by batch. A bank of prompts meets another image size by interpolation. A batch without one finite
image leaves no trace; the host waits to know.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.descent import Descent, Snapshot, any_finite_image, zero_non_finite
from ttdg.networks import batchnorm, split
from ttdg.networks.batchnorm.alignment import AlignmentMode
from ttdg.networks.segmenter import pad_to_stride

FIRST_MOMENTUM = 0.1  # m̃₀
KEPT = 0.1  # of the feature channels each prompt channel may reach


class Prompts(nn.Module):
    """The two prompts: a residual on the image, and a bank that feature channels read by attention."""

    def __init__(self, channels: int, bottleneck: tuple[int, int, int], count: int) -> None:
        super().__init__()
        width, height, breadth = bottleneck
        self.decorator = nn.Sequential(
            nn.Conv2d(channels, 64, 1), nn.InstanceNorm2d(64), nn.ReLU(), nn.Conv2d(64, channels, 1)
        )
        self.bank = nn.Parameter(torch.zeros(1, count, height, breadth))
        self.query = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.key, self.value = (nn.Conv2d(count, count, 3, padding=1, groups=count) for _ in range(2))
        for start in (self.decorator[-1].weight, self.decorator[-1].bias, self.value.bias):
            nn.init.zeros_(start)  # type: ignore[arg-type]

    def decorate(self, images: Images) -> Images:
        return images + self.decorator(images) if images[0, 0].numel() > 1 else images

    def attend(self, features: split.Features) -> split.Features:
        """F + W v, W = softmax over prompts of q kᵀ/√K, each prompt reaching its 10 % nearest channels alone."""
        deepest = features[-1]
        bank: Tensor = self.bank
        if bank.shape[-2:] != deepest.shape[-2:]:
            bank = F.interpolate(self.bank, deepest.shape[-2:], mode="bilinear")
        q, k, v = (m(x).flatten(2) for m, x in ((self.query, deepest), (self.key, bank), (self.value, bank)))
        weights = sparse((q @ k.mT / bank.shape[1] ** 0.5).softmax(-1))
        return *features[:-1], deepest + (weights @ v).view_as(deepest)


def sparse(weights: Float[Tensor, "b c k"]) -> Float[Tensor, "b c k"]:
    """Zero but for the ⌊c/10⌋ (at least one) largest feature channels of every prompt channel."""
    kept = weights.topk(max(1, int(KEPT * weights.shape[1])), dim=1).indices
    return weights * torch.zeros_like(weights).scatter_(1, kept, 1.0)


def pass_momentum(updates: int, decay: float, least: float) -> float:
    """m_t = δᵗ·0.1 + m_min after t updates: 0.104, 0.0984, … for δ = 0.94, m_min = 0.01."""
    return FIRST_MOMENTUM * decay**updates + least


class Pass:
    def __init__(
        self,
        network: nn.Module,
        *,
        lr: float,
        steps: int,
        decay: float,
        least: float,
        count: int,
        objective: Literal["statistics", "entropy"],
        fallback: Literal["full", "half", "never"],
        head: losses.Head,
        seed: int,
    ) -> None:
        self.network = split.require_split(network.eval().requires_grad_(False))
        self.lr, self.steps, self.decay, self.least, self.count = lr, steps, decay, least, count
        self.minimised, self.fallback, self.head, self.seed = objective, fallback, head, seed
        batchnorm.use(network, batchnorm.EVAL)
        self.mode, self.layers = AlignmentMode(network), list(batchnorm.layers(network))
        self.prompts: Prompts | None
        self._affine = Snapshot(batchnorm.affine(network))
        self._statistics = Snapshot(
            b for layer in batchnorm.layers(network) for b in batchnorm.running(layer)
        )
        self.reset()

    def __call__(self, images: Images) -> Logits:
        if not any_finite_image(images):
            return self.predict_frozen(images)
        safe = zero_non_finite(images)
        source = self._source_answer(images)
        self.slow.restore()
        self._use(self.mode)
        for _ in range(self.steps):
            with torch.enable_grad():
                loss = self.objective(safe)
            self.descent.step(loss)
            self._average()
            self.loss = loss.detach()
        self._use(batchnorm.EVAL)
        with torch.no_grad():
            return self._surer(self._prompted(images), source)

    @torch.no_grad()
    def predict_frozen(self, images: Images) -> Logits:
        """The answer without a step, by the weights and prompts that the last batch left or by the source's."""
        if self.prompts is None:
            return self.network(images)
        last = Snapshot([*self._affine.tensors, *self._statistics.tensors])
        source = self._source_answer(images)
        last.restore()
        return self._surer(self._prompted(images), source)

    def _use(self, mode: batchnorm.Mode) -> None:
        for layer in self.layers:
            layer.mode = mode  # type: ignore[assignment]

    @torch.no_grad()
    def _source_answer(self, images: Images) -> Logits:
        """The source model's logits; the first batch also says how large the prompts must be."""
        self._affine.restore()
        self._statistics.restore()
        features = self.network.encode(pad_to_stride(images))
        if self.prompts is None:
            self._begin(images, features[-1])
        return split.crop(self.network.decode(features), images)

    def _begin(self, images: Images, deepest: Tensor) -> None:
        _, width, height, breadth = deepest.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            prompts = Prompts(images.shape[1], (width, height, breadth), self.count)
        self.prompts = prompts.to(images.device)
        learnt = [*prompts.parameters(), *batchnorm.affine(self.network)]
        self.descent, self.slow = Descent(learnt, lr=self.lr), Snapshot(learnt)

    def objective(self, images: Images) -> Tensor:
        """How far the encoder's statistics lie from the source's, or the entropy of the answer."""
        if self.minimised == "entropy":
            return losses.entropy(self._prompted(images), self.head).mean()
        assert self.prompts is not None
        self.mode.met = []
        features = self.network.encode(pad_to_stride(self.prompts.decorate(images)))
        misfit, self.mode.met = self.mode.misfit(), None
        with torch.no_grad():  # moves the decoder's running statistics too, as a pass in training mode does
            self.network.decode(self.prompts.attend(features))
        return images.new_zeros(()) if misfit is None else misfit

    def _prompted(self, images: Images) -> Logits:
        assert self.prompts is not None
        decorated = self.prompts.decorate(images)
        return split.forward_split(self.network, decorated, self.prompts.attend)

    @torch.no_grad()
    def _average(self) -> None:
        self.updates += 1
        weight = pass_momentum(self.updates, self.decay, self.least)
        torch._foreach_lerp_(self.slow.values, self.slow.tensors, weight)

    def _surer(self, answer: Logits, source: Logits) -> Logits:
        """Image by image, the answer where it is the less uncertain (and finite), else the source's."""
        if self.fallback == "never":
            return answer
        better = self._doubt(answer) < self._doubt(source)
        return torch.where(better.view(-1, *[1] * (answer.ndim - 1)), answer, source)

    def _doubt(self, logits: Logits) -> Float[Tensor, "b"]:
        if self.fallback == "full":
            return losses.entropy(logits, self.head).flatten(1).mean(1)
        p = logits.softmax(1)[:, 1:] if self.head == "softmax" else logits.sigmoid()
        p = p.flatten(2)
        return (torch.special.entr(p).sum(2) / p.sum(2)).mean(1)

    def reset(self) -> None:
        self.updates, self.prompts = 0, None
        self._affine.restore()
        self._statistics.restore()


def pass_(
    network: nn.Module,
    *,
    lr: float = 5e-3,
    steps: int = 2,
    decay: float = 0.94,
    least: float = 0.01,
    count: int = 512,
    objective: Literal["statistics", "entropy"] = "statistics",
    fallback: Literal["full", "half", "never"] = "full",
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    return Pass(
        network, lr=lr, steps=steps, decay=decay, least=least, count=count,
        objective=objective, fallback=fallback, head=head, seed=seed,
    )  # fmt: skip


METHOD = Method(
    build=pass_,
    summary="a prompt on the image (at the bottleneck too with objective=entropy), trained to meet the source's "
    "statistics, with the source to fall back on",
    adapts="prompt on the image, BatchNorm statistics, γ, β of the encoder but for its last layer",
    norm="TRAIN, then EVAL",
    memory=True,
    forwards=4,
    backwards=2,
    predict="after",
    paper="Zhang et al., TMI 2024",
    origin="as published for fundus; prompts start as the identity and the fallback is the full entropy (ours)",
    needs=("BatchNorm", "encode/decode"),
    reset="continual",
    grid={"lr": (5e-4, 5e-3, 5e-2), "steps": (1, 2)},
)
