"""NC-TTT: the early encoder is moved until its features look free of noise to a small discriminator.

Osowiechi et al., NC-TTT: A Noise Contrastive Approach for Test-Time Training, CVPR 2024.

Part `nc-ttt`: a projection and a discriminator that was taught, on source features, to tell a little noise from much.
The original trains them together with the network; here they are fitted to the trained, frozen network, so that the
source model is every other method's. Faithfulness it costs: the encoder was not shaped by the noise task.

Decisions for segmentation: features of pyramid level 2 (stride 8), each place a vector of its own; the projection is
fixed, the axes along which source features vary least, since a learnt one makes itself degenerate (see
`networks/noise.py`); σ is in units of the features' mean standard deviation; soft targets are computed in
log space; the discriminator stays in EVAL while the encoder adapts (the release lets its statistics move). All
parameters up to that level move, with BatchNorm in TRAIN; what lies behind is neither run nor touched until the
answer, which is given in EVAL. `steps` passes therefore cost only the early encoder. Adam; `optimiser="sgd"` is what
the release's flags lead to.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.descent import Descent, Snapshot, zero_non_finite
from ttdg.networks import batchnorm, pyramid, split
from ttdg.networks.heads.noise import Discriminator
from ttdg.networks.segmenter import pad_to_stride
from ttdg.types import Part


class NcTtt:
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
        self.discriminator = Discriminator.from_part(part, next(network.parameters()).device)
        batchnorm.use(network, batchnorm.EVAL)
        self.producer = pyramid.level_modules(network)[part.settings["level"]][0]
        early = pyramid.parameters_before(network, self.producer)
        self.descent = Descent(early, lr=lr, kind=optimiser)
        statistics = (b for layer in batchnorm.layers(network) for b in batchnorm.running(layer))
        self._source = Snapshot([*early, *statistics])

    def __call__(self, images: Images) -> Logits:
        self.reset()
        batchnorm.use(self.network, batchnorm.TRAIN)
        safe = zero_non_finite(images)
        for _ in range(self.steps):
            with torch.enable_grad():
                loss = self.objective(safe)
            self.descent.step(loss)
            self.loss = loss.detach()
        batchnorm.use(self.network, batchnorm.EVAL)
        with torch.no_grad():
            return self.network(images)

    def objective(self, images: Images) -> Tensor:
        """mean softplus(d): small where no place looks noisy."""
        safe = pad_to_stride(images)
        return F.softplus(self.discriminator(pyramid.encode_to(self.network, self.producer, safe))).mean()

    def reset(self) -> None:
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
    return NcTtt(network, part, lr=lr, steps=steps, optimiser=optimiser)


METHOD = Method(
    build=nc_ttt,
    summary="the early encoder moved until a discriminator, fitted on source features, finds no noise in them",
    adapts="early encoder",
    norm="TRAIN, then EVAL",
    memory=False,
    forwards=11,
    backwards=10,
    predict="after",
    paper="Osowiechi et al., CVPR 2024",
    origin="lr 1e-5 as published; 10 steps (published 50), Adam, level 2 and the part fitted afterwards are ours",
    needs=("BatchNorm", "encode/decode"),
    parts=("nc-ttt",),
    reset="episodic",
    grid={"lr": (1e-6, 1e-5, 1e-4), "steps": (10, 50)},
)
