"""Self-training: a student learns from its own slow average, which labels the unaugmented images of the site.

The weak–strong mean teacher of CBMT (Tang et al., Source-free Domain Adaptive Fundus Image Segmentation with
Class-balanced Mean Teacher, MICCAI 2023), without its class balance. It is the control of every method that learns a
site.

The teacher is an exponential average of the student. Its prediction of an unaugmented image, averaged over the
horizontal flip and sharpened, is the soft label. The student sees the same image under strong augmentation, with the
label moved along, and minimises cross-entropy plus soft Dice. All weights change.

Decisions: BatchNorm uses the source's statistics and never changes them; in training mode the method lost 2 Dice on
fundus images in a pilot. The optimiser is AdamW at 1e-4. CBMT uses Adam at 5e-4, hard labels at a threshold of 0.75 and
a weight for the background of rare structures; none of these is used here. The prediction is the teacher's, without the
flip, so that flips can be compared as a control of their own.

Two streams: `online` stores every batch in a bounded memory, takes `steps` steps on random draws from it and then
predicts the batch. `folder` (`learn`) stores all images of the site, takes `folder_steps` steps with a learning rate
that falls to 0, and then predicts every image with the final teacher.
"""

import copy
from collections.abc import Iterable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.adaptation.options import COUNT, HEAD, LR, POSITIVE, SEED, SHARE, STEPS, Option
from ttdg.adaptation.site_learning.image_memory import ImageMemory
from ttdg.adaptation.site_learning.strong_views import draw_views, move_labels, strong_view
from ttdg.networks import batchnorm
from ttdg.networks.averaging import ema_update
from ttdg.networks.losses import soft_dice

POWER = 0.9  # exponent of the polynomial decay of the learning rate in the folder stream


class SelfTraining(GradientAdapter):
    """The adapter of self-training.

    State: the weights of the student (`network`) and of the `teacher`, AdamW, the memory of images and two random
    generators. One call stores the batch, takes `steps` steps on draws from the memory and returns the logits of the
    teacher.
    """

    def __init__(
        self, network: nn.Module, *, lr: float, steps: int, folder_steps: int, draw: int, capacity: int,
        momentum: float, sharpness: float, head: losses.Head, seed: int,
    ) -> None:  # fmt: skip
        self.folder_steps, self.draw, self.momentum = folder_steps, draw, momentum
        self.sharpness, self.head, self.seed = sharpness, head, seed
        if batchnorm.has_layers(network):
            batchnorm.use(network, batchnorm.EVAL)
        self.teacher = copy.deepcopy(network).eval().requires_grad_(False)
        self.capacity, self.memory = capacity, ImageMemory(capacity, seed)
        self.generator = torch.Generator()
        self._rate = torch.tensor(1 - momentum, device=next(network.parameters()).device)
        super().__init__(
            network, partial(soft_label_loss, head=head), list(network.parameters()), lr=lr, steps=steps,
            optimiser=torch.optim.AdamW,
        )  # fmt: skip

    def __call__(self, images: Images) -> Logits:
        """Store the batch, learn from the memory, and return the teacher's logits."""
        self.memory.add(images)
        if len(self.memory):
            for _ in range(self.steps):
                self._learn()
        return self.predict_frozen(images)

    @torch.no_grad()
    def predict_frozen(self, images: Images) -> Logits:
        """Return the teacher's logits without an update."""
        return self.teacher(images)

    def learn(self, site: Iterable[Images]) -> None:
        """Learn a whole site: `folder_steps` steps on draws from all its images, at a falling learning rate."""
        self.memory = ImageMemory(None, self.seed)
        for images in site:
            self.memory.add(images)
        if not len(self.memory):
            return
        for step in range(self.folder_steps):
            for group in self.optimiser.param_groups:
                group["lr"] = self.lr * (1 - step / self.folder_steps) ** POWER
            self._learn()

    def _learn(self) -> None:
        """Take one step on images drawn from the memory, and let the teacher follow."""
        rows = self.memory.draw(self.draw)
        raw = self.memory.unit_images(rows)
        strong, grid = strong_view(raw, draw_views(len(raw), self.generator))
        weak_input = self.memory.network_input(raw, rows)
        labels = move_labels(self._soft_labels(weak_input), grid)
        with torch.enable_grad():
            loss = self.objective(self.network(self.memory.network_input(strong, rows)), labels)
        self._update(loss)
        ema_update(list(self.teacher.parameters()), self.parameters, self._rate * self.loss.isfinite())

    @torch.no_grad()
    def _soft_labels(self, images: Images) -> Float[Tensor, "b l h w"]:
        """The teacher's probabilities, averaged over the horizontal flip, then sharpened."""
        upright, mirrored = self.teacher(images), self.teacher(images.flip(3)).flip(3)
        mean = (
            losses.probabilities(upright.float(), self.head)
            + losses.probabilities(mirrored.float(), self.head)
        ) / 2
        return sharpen(mean, self.sharpness, self.head)

    @torch.no_grad()
    def reset(self) -> None:
        """Return student and teacher to the source, and forget all images."""
        super().reset()
        torch._foreach_copy_(list(self.teacher.parameters()), self.parameters)
        self.memory = ImageMemory(self.capacity, self.seed)
        self.generator.manual_seed(self.seed)


def sharpen(
    probabilities: Float[Tensor, "b l h w"], power: float, head: losses.Head
) -> Float[Tensor, "b l h w"]:
    """Raise probabilities to a power and normalise: over the channels (softmax), or each against its complement."""
    powered = probabilities**power
    if head == "softmax":
        return powered / powered.sum(1, keepdim=True)
    return powered / (powered + (1 - probabilities) ** power)


def soft_label_loss(
    logits: Float[Tensor, "b l h w"], labels: Float[Tensor, "b l h w"], head: losses.Head
) -> Float[Tensor, ""]:
    """Cross-entropy plus soft Dice of a prediction against soft labels; the background counts in the first only."""
    if losses.uses_softmax(logits.shape[1], head):
        log_p = logits.float().log_softmax(1)
        cross_entropy = -(labels * log_p).sum(1).mean()
        p, y = log_p.exp()[:, 1:], labels[:, 1:]
    else:
        cross_entropy = nn.functional.binary_cross_entropy_with_logits(logits.float(), labels)
        p, y = logits.float().sigmoid(), labels
    return cross_entropy + (1 - soft_dice(p, y)).mean()


def self_training(
    network: nn.Module,
    *,
    lr: float = 1e-4,
    steps: int = 4,
    folder_steps: int = 300,
    draw: int = 16,
    capacity: int = 512,
    momentum: float = 0.99,
    sharpness: float = 2.0,
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    """Build the adapter of method `self-training`."""
    return SelfTraining(
        network, lr=lr, steps=steps, folder_steps=folder_steps, draw=draw, capacity=capacity, momentum=momentum,
        sharpness=sharpness, head=head, seed=seed,
    )  # fmt: skip


PILOT = "a pilot of this project on polyp and fundus sites"
METHOD = Method(
    build=self_training,
    summary="a student learns from its slow average under strong augmentation; all weights change",
    adapts="all weights",
    norm="EVAL",
    memory=True,
    forwards=49,  # 4 steps, each with 3 passes over 16 images, in units of a batch of 4; and the prediction
    backwards=16,
    predict="after",
    paper="after Tang et al., MICCAI 2023 (CBMT), without its class balance",
    origin=PILOT,
    options={
        "lr": LR.with_origin(PILOT),
        "steps": STEPS.with_origin(PILOT),
        "folder_steps": Option("gradient steps on a whole site, in the folder stream", PILOT, COUNT),
        "draw": Option("images of each gradient step, drawn from the memory", PILOT, COUNT),
        "capacity": Option(
            "images that the memory of the online stream keeps, as bytes",
            "this project: 512 images of 256 × 256 take 100 MB",
            COUNT,
        ),
        "momentum": Option("share that the teacher keeps of its own weights at each step", PILOT, SHARE),
        "sharpness": Option(
            "power to which the teacher's probabilities are raised; 1 keeps them", PILOT, POSITIVE
        ),
        "head": HEAD,
        "seed": SEED,
    },
    grid={"lr": (3e-5, 1e-4, 3e-4), "steps": (2, 4)},
)
