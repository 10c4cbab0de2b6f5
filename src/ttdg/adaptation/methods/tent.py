"""TENT: entropy minimisation on BatchNorm's γ and β.

Wang et al., Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021.

Decisions: the mean runs over all pixels (the official mean over the batch alone leaves an image); binary entropy
for sigmoid heads (`entropy_form="half"` imitates ports that minimise −p log p only, `"hard"` is self-training on
hard pseudo-labels, a control); the answer is that of the forward before the update, as published (`predict="after"`
pays another forward).
"""

from typing import Literal

import torch
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Method
from ttdg.errors import UserError
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
    if entropy_form == "half" and head != "sigmoid":
        raise UserError(
            'entropy_form="half" is of sigmoid channels; say head="sigmoid", or entropy_form="full"'
        )
    batchnorm.use(network, batchnorm.BATCH)

    def objective(logits: Tensor) -> Tensor:
        if entropy_form == "half":
            return losses.half_entropy(logits).mean()
        form = losses.entropy if entropy_form == "full" else losses.surprise_of_likeliest
        return form(logits, head).mean()

    adam = torch.optim.Adam
    return GradientAdapter(
        network, objective, batchnorm.affine(network), lr=lr, steps=steps, predict=predict, optimiser=adam
    )


METHOD = Method(
    build=tent,
    summary="entropy minimisation on BatchNorm's γ, β with batch statistics",
    adapts="BatchNorm γ, β",
    norm="BATCH",
    memory=True,
    forwards=1,
    backwards=1,
    predict="before",
    paper="Wang et al., ICLR 2021",
    origin="Adam, 1 step as published; lr 1e-4 (published 1e-3 for CIFAR-C) is our choice for segmentation",
    needs=("BatchNorm",),
)
