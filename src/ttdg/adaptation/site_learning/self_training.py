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

from torch import nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, Method
from ttdg.adaptation.options import COUNT, HEAD, LR, POSITIVE, SEED, SHARE, STEPS, Option
from ttdg.adaptation.site_learning.learner import SelfTraining
from ttdg.networks import Classifier


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
    keep_areas: bool = False,
    dice: bool = True,
    moves: bool = True,
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    """Build the adapter of method `self-training`. For a classifier the loss has no Dice."""
    dice = dice and not isinstance(network, Classifier)
    return SelfTraining(
        network, lr=lr, steps=steps, folder_steps=folder_steps, draw=draw, capacity=capacity, momentum=momentum,
        sharpness=sharpness, keep_areas=keep_areas, dice=dice, moves=moves, head=head, seed=seed,
    )  # fmt: skip


PILOT = "a pilot of this project on polyp and fundus sites"
OPTIONS = {
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
    "keep_areas": Option(
        "sharpen such that the area of each structure in each image stays the same",
        "this project: false, as CBMT has no such rule",
    ),
    "dice": Option("add 1 − soft Dice of the structures to the loss", "this project: as in source training"),
    "moves": Option(
        "turn, flip, scale and shift the strong views; without it, views of three channels change in light and colours "
        "alone, and other views not at all",
        "this project: as in source training; a small network on fundus images gained without, and a ResNet-50 did not "
        "(docs/measurements/learning-trials.md)",
    ),
    "head": HEAD,
    "seed": SEED,
}
METHOD = Method(
    build=self_training,
    summary="a student learns from its slow average under strong augmentation; all weights change",
    adapts="all weights",
    norm="EVAL",
    memory=True,
    forwards=49,  # 4 steps, each with 3 passes over 16 images, in units of a batch of 4; and the prediction
    backwards=16,
    predict="after",
    access="source-free",
    single_precision=True,
    paper="after Tang et al., MICCAI 2023 (CBMT), without its class balance",
    origin=PILOT,
    published=None,
    options=OPTIONS,
    grid={"lr": (3e-5, 1e-4, 3e-4), "steps": (2, 4)},
    folder_grid={"lr": (3e-5, 1e-4, 3e-4), "folder_steps": (300, 600)},
)
