"""PASS: train prompts on the input and at the bottleneck; use the source's prediction if it is less uncertain.

Zhang et al., PASS: Test-Time Prompting to Adapt Styles and Semantic Shapes in Medical Image Segmentation, TMI 2024.

Decisions: The last convolution of the decorator and the bias of the value start at 0, so that untrained prompts are
the identity; published: random. The encoder's statistics do not depend on the prompt at the bottleneck: by default it
gets no gradient and stays the identity, and it is trained only with `objective="entropy"`. The slow copy holds
prompts, γ and β; its BatchNorm statistics stay those of the source. Adam's moments are kept.

The fallback compares the published score −Σp log p/Σp of each structure, averaged over the structures; published:
weights of 5:1 for disc and cup. The score is a mean of −log p with weights p. It is high for an empty mask (6.9 for
p = 1e-3, 0.2 for a good disc), and so an empty prediction does not replace that of the source.
`fallback="entropy"` is the full entropy. It is low for an empty mask (0.008, and 0.056 for a good disc), and so favours
empty masks.

The defaults are the published setting for fundus: lr 5e-3, 2 steps, δ 0.94, m_min 0.01 and the published fallback.

`objective="entropy"` follows the published form for prostate. That form minimises the half entropy with lr 1e-2, 1
step, δ 0.6 and m_min 0.005, starts from the slow copy once per case, and predicts the whole case again with its last
weights; here it is the full entropy, batch by batch. The bank of prompts is interpolated for another image size.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.descent import Descent, Snapshot
from ttdg.adaptation.options import COUNT, HEAD, LR, SEED, SHARE, STEPS, Option
from ttdg.adaptation.pass_prompts import Prompts
from ttdg.networks import batchnorm, split
from ttdg.networks.batchnorm.alignment import AlignmentMode
from ttdg.networks.segmenter import pad_to_stride

Fallback = Literal["published", "entropy", "never"]
FIRST_MOMENTUM = 0.1  # the decaying part of the momentum before the first update


def pass_momentum(updates: int, decay: float, least: float) -> float:
    """m_t = δᵗ·0.1 + m_min after t updates: 0.104, 0.0984, … for δ = 0.94, m_min = 0.01."""
    return FIRST_MOMENTUM * decay**updates + least


def published_uncertainty(logits: Logits, head: losses.Head) -> Float[Tensor, "b"]:
    """−Σp log p/Σp over the pixels, averaged over structures; 0 for a sure structure, and high for an empty mask.

    The weights p/Σp are a softmax of log p over the pixels, so that a mask whose probabilities round to 0 has a score.
    """
    softmax = losses.uses_softmax(logits.shape[1], head)
    log_p = (F.log_softmax(logits, 1)[:, 1:] if softmax else F.logsigmoid(logits)).flatten(2)
    return -(log_p.softmax(2) * log_p).sum(2).mean(1)


class Pass:
    """The adapter of PASS.

    State: prompts, γ and β, their exponential average (`slow`), Adam, and the number of `updates`. One call:
    prediction of the source model; load the average into prompts, γ and β, and the source statistics into BatchNorm;
    `steps` Adam steps, each followed by an update of the average; forward pass with the prompts; for each image, the
    less uncertain of this prediction and the source's. The first batch creates the prompts, because it sets their
    size.
    """

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
        fallback: Fallback,
        head: losses.Head,
        seed: int,
    ) -> None:
        self.network = split.require_split(network.eval().requires_grad_(False))
        self.lr, self.steps, self.decay, self.least, self.count = lr, steps, decay, least, count
        self.minimised, self.fallback, self.head, self.seed = objective, fallback, head, seed
        batchnorm.use(network, batchnorm.EVAL)
        self.mode, self.layers = AlignmentMode(network), list(batchnorm.layers(network))
        self.prompts: Prompts | None
        self._affine = Snapshot(batchnorm.affine_parameters(network))
        self._statistics = Snapshot(b for layer in self.layers for b in batchnorm.running_statistics(layer))
        self.reset()

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch and return, for each image, the less uncertain logits."""
        source = self._source_prediction(images)
        self.slow.restore()
        self._use(self.mode)
        try:
            for _ in range(self.steps):
                with torch.enable_grad():
                    loss = self.objective(images)
                self.descent.step(loss)
                self._update_slow_copy()
                self.loss = loss.detach()
        finally:
            self._use(batchnorm.EVAL)
        with torch.no_grad():
            return self._less_uncertain(self._prompted_prediction(images), source)

    @torch.no_grad()
    def predict_frozen(self, images: Images) -> Logits:
        """Return the logits with the weights and prompts of the last batch, or of the source before the first."""
        if self.prompts is None:
            return self.network(images)
        last = Snapshot([*self._affine.tensors, *self._statistics.tensors])
        source = self._source_prediction(images)
        last.restore()
        return self._less_uncertain(self._prompted_prediction(images), source)

    def _use(self, mode: batchnorm.Mode) -> None:
        for layer in self.layers:
            layer.mode = mode  # type: ignore[assignment]

    @torch.no_grad()
    def _source_prediction(self, images: Images) -> Logits:
        """Restore γ, β and the statistics of the source, and return its logits; the first call builds the prompts."""
        self._affine.restore()
        self._statistics.restore()
        features = self.network.encode(pad_to_stride(images))
        if self.prompts is None:
            self._build_prompts(images, features[-1])
        return split.crop(self.network.decode(features), images)

    def _build_prompts(self, images: Images, deepest: Tensor) -> None:
        _, width, height, breadth = deepest.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            prompts = Prompts(images.shape[1], (width, height, breadth), self.count)
        self.prompts = prompts.to(images.device)
        trained = [*prompts.parameters(), *batchnorm.affine_parameters(self.network)]
        self.descent, self.slow = Descent(trained, lr=self.lr), Snapshot(trained)

    def objective(self, images: Images) -> Tensor:
        """Distance of the encoder's statistics from the source statistics, or the entropy of the prediction."""
        if self.minimised == "entropy":
            return losses.entropy(self._prompted_prediction(images), self.head).mean()
        assert self.prompts is not None
        self.mode.collected = []
        features = self.network.encode(pad_to_stride(self.prompts.decorate(images)))
        misfit, self.mode.collected = self.mode.misfit(), None
        with torch.no_grad():  # updates the decoder's running statistics, as a pass in training mode does
            self.network.decode(self.prompts.attend(features))
        return images.new_zeros(()) if misfit is None else misfit

    def _prompted_prediction(self, images: Images) -> Logits:
        assert self.prompts is not None
        decorated = self.prompts.decorate(images)
        return split.forward_split(self.network, decorated, self.prompts.attend)

    @torch.no_grad()
    def _update_slow_copy(self) -> None:
        self.updates += 1
        weight = pass_momentum(self.updates, self.decay, self.least)
        torch._foreach_lerp_(self.slow.values, self.slow.tensors, weight)

    def _less_uncertain(self, adapted: Logits, source: Logits) -> Logits:
        """For each image, the adapted logits if they are less uncertain than the source's (and finite)."""
        if self.fallback == "never":
            return adapted
        better = self._uncertainty(adapted) < self._uncertainty(source)
        return torch.where(better.view(-1, *[1] * (adapted.ndim - 1)), adapted, source)

    def _uncertainty(self, logits: Logits) -> Float[Tensor, "b"]:
        if self.fallback == "entropy":
            return losses.entropy(logits, self.head).flatten(1).mean(1)
        return published_uncertainty(logits, self.head)

    def reset(self) -> None:
        """Return to the source; the next batch builds new prompts."""
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
    fallback: Fallback = "published",
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    """Build the adapter of method `pass`."""
    return Pass(
        network, lr=lr, steps=steps, decay=decay, least=least, count=count,
        objective=objective, fallback=fallback, head=head, seed=seed,
    )  # fmt: skip


METHOD = Method(
    build=pass_,
    summary="a prompt on the image (at the bottleneck too with objective=entropy), trained to match the source's "
    "statistics, with the source as fallback",
    adapts="prompt on the image, BatchNorm statistics, γ, β of the encoder but for its last layer",
    norm="TRAIN, then EVAL",
    memory=True,
    forwards=4,
    backwards=2,
    predict="after",
    access="source-free",
    single_precision=True,
    paper="Zhang et al., TMI 2024",
    origin="as published for fundus (Adam 5e-3, 2 steps, fallback by −Σp log p/Σp); "
    "prompts that start as the identity are ours",
    options={
        "lr": LR.with_origin("the authors' code for fundus (Adam); 1e-2 for prostate"),
        "steps": STEPS.with_origin("the authors' code for fundus; 1 for prostate"),
        "decay": Option(
            "factor δ by which the momentum of the average decays",
            "the authors' code for fundus; 0.6 for prostate",
            SHARE,
        ),
        "least": Option(
            "floor m_min of the momentum of the average",
            "the authors' code for fundus; 0.005 for prostate",
            SHARE,
        ),
        "count": Option("number K of prompt channels at the bottleneck", "the authors' code", COUNT),
        "objective": Option(
            "loss: distance of the encoder's statistics from the source's, or entropy of the prediction",
            "the authors' code: statistics for fundus, entropy for prostate",
        ),
        "fallback": Option(
            "score that decides between adapted and source prediction: −Σp log p/Σp, full entropy, or never the source",
            "the authors' code: published, but with weights for disc and cup; entropy is this project's",
        ),
        "head": HEAD,
        "seed": SEED.with_origin("this project: a fixed seed for the prompts' initial weights"),
    },
    needs=("BatchNorm", "encode/decode", "segmentation"),
    reset="continual",
    grid={"lr": (5e-4, 5e-3, 5e-2), "fallback": ("published", "entropy")},
)
