"""DUA: move the running BatchNorm statistics towards the test stream, with a momentum that decays to a floor.

Mirza et al., The Norm Must Go On: Dynamic Unsupervised Domain Adaptation by Normalization, CVPR 2022.

Decisions: Each image is shown in the eight symmetries of the square, once each: 9 forward passes with the prediction.
The paper uses 64 random crops, rotations and flips: 65 passes. An image that is not square is shown only in the four
symmetries that keep its shape. The momentum decays once per batch.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.descent import Snapshot
from ttdg.adaptation.options import COUNT, SHARE, Option
from ttdg.adaptation.views import SQUARE_VIEWS
from ttdg.networks import batchnorm

START = 0.1  # the decaying part of the momentum before the first batch


def dua_momentum(batches: int, decay: float, least: float) -> float:
    """m_t = 0.1·ωᵗ + ζ for the t-th batch: 0.099, 0.09336, … with the published ω = 0.94, ζ = 0.005."""
    return START * decay**batches + least


class Dua:
    """The adapter of DUA.

    State: the running statistics of BatchNorm and the number of `batches`. One call: forward pass over all views of the
    batch, in which batch statistics normalise and move the running statistics by the momentum; forward pass
    over the batch with the running statistics.
    """

    def __init__(self, network: nn.Module, *, decay: float, least: float, views: int) -> None:
        self.network = network.eval().requires_grad_(False)
        self.decay, self.least, self.views = decay, least, views
        batchnorm.use(network, batchnorm.EVAL)
        self.layers = list(batchnorm.layers(network))
        self._source = Snapshot([*network.parameters(), *network.buffers()])
        self.reset()

    @torch.no_grad()
    def __call__(self, images: Images) -> Logits:
        """Update the running statistics with the batch and return its logits."""
        self.batches += 1
        self._use(batchnorm.TrainMode(dua_momentum(self.batches, self.decay, self.least)))
        self.network(self._views(images))
        self._use(batchnorm.EVAL)
        return self.network(images)

    def _views(self, images: Images) -> Float[Tensor, "n c h w"]:
        square = images.shape[-1] == images.shape[-2]
        symmetries = [view for view in SQUARE_VIEWS if square or view.turns % 2 == 0]
        return torch.cat([symmetries[i % len(symmetries)](images) for i in range(self.views)])

    def _use(self, mode: batchnorm.Mode) -> None:
        for layer in self.layers:
            layer.mode = mode  # type: ignore[assignment]

    def reset(self) -> None:
        """Restore the statistics of the source and the first momentum."""
        self.batches = 0
        self._source.restore()


def dua(network: nn.Module, *, decay: float = 0.94, least: float = 0.005, views: int = 8) -> Adapter:
    """Build the adapter of method `dua`."""
    return Dua(network, decay=decay, least=least, views=views)


METHOD = Method(
    build=dua,
    summary="running statistics follow the stream with decaying momentum",
    adapts="BatchNorm statistics",
    norm="TRAIN, then EVAL",
    memory=True,
    forwards=9,
    backwards=0,
    predict="after",
    access="source-free",
    paper="Mirza et al., CVPR 2022",
    origin="momentum as published; 8 views are ours (published 64)",
    published={"views": 64},
    options={
        "decay": Option("factor ω by which the momentum decays from batch to batch", "the paper", SHARE),
        "least": Option("floor ζ that is added to the decaying momentum", "the paper", SHARE),
        "views": Option(
            "number of flipped and rotated views of each image",
            "this project: each symmetry of the square once; the paper has 64 random views, and 64 here repeat the "
            "symmetries",
            COUNT,
        ),
    },
    needs=("BatchNorm",),
    reset="continual",
    grid={"least": (0.005, 0.05), "decay": (0.9, 0.94, 0.98)},
)
