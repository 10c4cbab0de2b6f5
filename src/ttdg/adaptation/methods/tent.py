"""TENT: minimise the entropy of the predictions by training γ and β of BatchNorm, with batch statistics.

Wang et al., Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021.

Decisions: The entropy is averaged over all pixels; the official code averages over the batch only, which would leave an
image. Sigmoid heads use the binary entropy. `entropy_form="half"` reproduces ports that minimise −p log p only, and
`entropy_form="hard"` is self-training on hard pseudo-labels, as a control. The prediction is the one before the update,
as published; `predict="after"` costs one more forward pass.
"""

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Method
from ttdg.adaptation.options import HEAD, LR, STEPS, Option
from ttdg.networks import batchnorm


def tent(
    network: nn.Module,
    *,
    lr: float = 1e-4,
    steps: int = 1,
    head: losses.Head = "softmax",
    entropy_form: Literal["full", "half", "hard"] = "full",
    predict: Literal["before", "after"] = "before",
) -> Adapter:
    """Build the adapter of method `tent`."""
    losses.check_entropy_form(entropy_form, head)
    batchnorm.use(network, batchnorm.BATCH)
    objective, parameters = partial(_loss, form=entropy_form, head=head), batchnorm.affine_parameters(network)
    adam = torch.optim.Adam
    return GradientAdapter(
        network, objective, parameters, lr=lr, steps=steps, predict=predict, optimiser=adam
    )


def _loss(logits: Tensor, form: str, head: losses.Head) -> Tensor:
    if form == "half":
        return losses.half_entropy(logits).mean()
    pixels = losses.entropy if form == "full" else losses.hard_label_cross_entropy
    return pixels(logits, head).mean()


METHOD = Method(
    build=tent,
    summary="entropy minimisation on BatchNorm's γ, β with batch statistics",
    adapts="BatchNorm γ, β",
    norm="BATCH",
    memory=True,
    forwards=1,
    backwards=1,
    predict="before",
    volumes=True,
    access="source-free",
    paper="Wang et al., ICLR 2021",
    origin="Adam, 1 step as published; lr 1e-4 (published 1e-3 for CIFAR-C) is our choice for segmentation",
    published={"lr": 1e-3},
    options={
        "lr": LR.with_origin("this project, for segmentation; the paper has 1e-3 for CIFAR-C"),
        "steps": STEPS.with_origin("the paper"),
        "head": HEAD,
        "entropy_form": Option(
            "loss: full entropy, half of it (−p log p, sigmoid heads only), or cross-entropy to hard pseudo-labels",
            "the paper: full",
        ),
        "predict": Option(
            "prediction from the forward pass before the update, or from one more pass after it",
            "the paper: before",
        ),
    },
    needs=("BatchNorm",),
)
