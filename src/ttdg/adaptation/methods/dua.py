"""DUA: running statistics that follow the test stream, with a momentum that decays to a floor.

Mirza et al., The Norm Must Go On: Dynamic Unsupervised Domain Adaptation by Normalization, CVPR 2022.

Decisions: the copies an image is seen in are the symmetries of the square, each once (published: 64 random crops,
turns and flips, which with the answer are 65 passes where these are 9); an oblong image is only mirrored and turned
upside down. The momentum decays once a batch. A batch whose answer or statistics would not be finite leaves the
statistics as they were, and the momentum too.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import views as symmetries
from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.descent import Snapshot
from ttdg.networks import batchnorm

START = 0.1  # m̃₀


def dua_momentum(batches: int, decay: float, least: float) -> float:
    """m_t = 0.1·ωᵗ + ζ for the t-th batch: 0.099, 0.09336, … with the published ω = 0.94, ζ = 0.005."""
    return START * decay**batches + least


class Dua:
    def __init__(self, network: nn.Module, *, decay: float, least: float, views: int) -> None:
        self.network = network.eval().requires_grad_(False)
        self.decay, self.least, self.views = decay, least, views
        batchnorm.use(network, batchnorm.EVAL)
        self.layers = list(batchnorm.layers(network))
        self._source = Snapshot(network.state_dict().values())
        self._buffers = [buffer for layer in self.layers for buffer in batchnorm.running(layer)]
        self.reset()

    @torch.no_grad()
    def __call__(self, images: Images) -> Logits:
        before = [buffer.clone() for buffer in self._buffers]
        self._use(batchnorm.TrainMode(dua_momentum(self.batches + 1, self.decay, self.least)))
        seen = self.network(self._copies(images))
        self._use(batchnorm.EVAL)
        if seen.isfinite().all() & torch.cat(self._buffers).isfinite().all():
            self.batches += 1
        else:
            torch._foreach_copy_(self._buffers, before)
        return self.network(images)

    def _copies(self, images: Images) -> Float[Tensor, "n c h w"]:
        square = images.shape[-1] == images.shape[-2]
        kinds = [view for view in symmetries.SQUARE if square or view.turns % 2 == 0]
        return torch.cat([kinds[i % len(kinds)](images) for i in range(self.views)])

    def _use(self, mode: batchnorm.Mode) -> None:
        for layer in self.layers:
            layer.mode = mode  # type: ignore[assignment]

    def reset(self) -> None:
        self.batches = 0
        self._source.restore()


def dua(network: nn.Module, *, decay: float = 0.94, least: float = 0.005, views: int = 8) -> Adapter:
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
    paper="Mirza et al., CVPR 2022",
    origin="momentum as published; 8 views are ours (published 64)",
    needs=("BatchNorm",),
    reset="continual",
    grid={"least": (0.005, 0.05), "decay": (0.9, 0.94, 0.98)},
)
