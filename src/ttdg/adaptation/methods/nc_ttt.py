"""NC-TTT: train the early encoder until its features look free of noise to a small discriminator.

Osowiechi et al., NC-TTT: A Noise Contrastive Approach for Test-Time Training, CVPR 2024.

Part `nc-ttt`: a projection and a discriminator, fitted on source features to tell little noise from much noise. The
paper trains them together with the network; here they are fitted to the trained, frozen network, so that all methods
share one source model. The encoder is therefore not shaped by the noise task.

Decisions: The features are those of pyramid level 2 (stride 8), and every position is one vector. The projection is
fixed to the axes along which source features vary least, because a trained projection becomes degenerate (see
`networks/heads/noise.py`). σ is measured in units of the features' mean standard deviation. Soft targets are computed
in log space. The discriminator stays in EVAL mode while the encoder adapts; the authors' code lets its statistics
move. All parameters up to level 2 are trained with BatchNorm in TRAIN mode. The layers behind level 2 are neither run
nor changed before the prediction, which uses EVAL mode, so that a step costs only a pass through the early encoder.
The optimiser is Adam, which the authors' code names for the adaptation. Its loop then replaces it for each batch by the
one named for the training, by default SGD without momentum: `optimiser="sgd"`.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.descent import Descent, Snapshot
from ttdg.adaptation.options import LR, STEPS, Option
from ttdg.checkpoints import reading_part
from ttdg.networks import batchnorm, pyramid, split
from ttdg.networks.heads.noise import NoiseDiscriminator
from ttdg.networks.segmenter import pad_to_stride
from ttdg.types import Part


class NcTtt:
    """The adapter of NC-TTT.

    State: weights and statistics of the early encoder, kept only until the next batch. One call: restore the source
    and a new optimiser; `steps` steps on the mean of softplus(d) over positions, with BatchNorm in TRAIN mode;
    forward pass in EVAL mode for the prediction.
    """

    def __init__(
        self,
        network: nn.Module,
        part: Part,
        *,
        lr: float,
        steps: int,
        optimiser: Literal["adam", "sgd"],
    ) -> None:
        self.network, self.steps = split.require_split(network.eval().requires_grad_(False)), steps
        batchnorm.use(network, batchnorm.EVAL)
        levels = pyramid.level_modules(network)
        with reading_part("nc-ttt"):
            self.discriminator = NoiseDiscriminator.from_part(part, next(network.parameters()).device)
            self.producer = levels[part.settings["level"]][0]
        early = pyramid.parameters_before(network, self.producer)
        self.descent = Descent(early, lr=lr, kind=optimiser)
        statistics = (b for layer in batchnorm.layers(network) for b in batchnorm.running_statistics(layer))
        self._source = Snapshot([*early, *statistics])

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch from the source and return its logits after the update."""
        self.reset()
        batchnorm.use(self.network, batchnorm.TRAIN)
        for _ in range(self.steps):
            with torch.enable_grad():
                loss = self.objective(images)
            self.descent.step(loss)
            self.loss = loss.detach()
        batchnorm.use(self.network, batchnorm.EVAL)
        with torch.no_grad():
            return self.network(images)

    def objective(self, images: Images) -> Tensor:
        """Mean of softplus(d) over images and positions; small if the discriminator sees no noise."""
        features = pyramid.encode_to(self.network, self.producer, pad_to_stride(images))
        return F.softplus(self.discriminator(features)).mean()

    def reset(self) -> None:
        """Return to the source, with a new optimiser."""
        self._source.restore()
        self.descent.restart()


def nc_ttt(
    network: nn.Module,
    part: Part,
    *,
    lr: float = 1e-5,
    steps: int = 10,
    optimiser: Literal["adam", "sgd"] = "adam",
) -> Adapter:
    """Build the adapter of method `nc-ttt`."""
    return NcTtt(network, part, lr=lr, steps=steps, optimiser=optimiser)


METHOD = Method(
    build=nc_ttt,
    summary="the early encoder trained until a discriminator, fitted on source features, sees no noise in them",
    adapts="early encoder",
    norm="TRAIN, then EVAL",
    memory=False,
    forwards=11,
    backwards=10,
    predict="after",
    access="source images",
    single_precision=True,
    post_hoc=True,
    paper="Osowiechi et al., CVPR 2024",
    origin="lr 1e-5 as published; 10 steps (published 50), level 2 and the part fitted afterwards are ours",
    published={"steps": 50, "optimiser": "sgd"},
    options={
        "lr": LR.with_origin("the authors' code"),
        "steps": STEPS.with_origin("this project, for speed; the authors' code has 50"),
        "optimiser": Option(
            "Adam, or SGD without momentum",
            "the authors' code: its adaptation flag says adam, but its loop follows the training flag, which says sgd",
        ),
    },
    needs=("BatchNorm", "encode/decode"),
    parts=("nc-ttt",),
    reset="episodic",
    grid={"lr": (1e-6, 1e-5, 1e-4), "steps": (10, 50)},
)
