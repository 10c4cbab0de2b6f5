"""VPTTA: each image gets a low-frequency prompt that brings BatchNorm's statistics to warmed-up ones.

Chen et al., Each Test Image Deserves A Specific Prompt: Continual Test-Time Adaptation for 2D Medical Image
Segmentation, CVPR 2024. The network stays as it is; only the prompt, and a memory of past prompts, are learnt.

Decisions: frequencies are shifted over the image's axes alone (the release also rolls batch and channels); one
prompt an image in larger batches, their losses summed, n counting images; the window's side is a share of the shorter
side; the memory holds 40, not 41; Adam's moments live on from image to image, as published, row by row of the batch,
and begin anew with a larger batch or another image size. An image that is not finite gives no gradient (Adam's moments
still move its prompt) and a neutral key. All BatchNorm layers take part (the release leaves PraNet's decoder out).
After the stream (`predict_frozen`) an image is answered with the prompt that the memory gives it, and the last λ.

What it costs beyond its passes is two calls a layer: a reduction of its input for each image's own statistics, and a
product for their gradient; without the GPU program for BatchNorm also some for the mixture, in either pass. Everything
else is done for all layers together. A step's slope and the answer depend on their inputs alone, λ among them, so both
are recorded on a GPU; Adam and the memory are not.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.fourier_prompt import Window, window
from ttdg.adaptation.memory import Memory
from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.batched import Mixing, channels, side_by_side
from ttdg.networks.batchnorm.custom_grad import LayerInput, met_with_gradient
from ttdg.networks.capture import CaptureGuard
from ttdg.networks.cuda_graph import Replay

TEMPERATURE = 0.2  # of the softmax over the cosines of neighbours


@torch.no_grad()
def misfit(
    inputs: Sequence[Tensor], means: Sequence[Tensor], variances: Sequence[Tensor]
) -> tuple[Float[Tensor, ""], Float[Tensor, "b channels"], Float[Tensor, "b channels"]]:
    """Σ_images mean_layers mean_channels |μ − μ_own| + |σ − σ_own|; its gradient at each layer's input is a·x + c."""
    own = zip(*(torch.var_mean(x, tuple(range(2, x.ndim))) for x in inputs), strict=True)
    var, mean = (side_by_side(of) for of in own)
    share, pixels = channels(inputs, 1)
    std, share = var.sqrt(), share / len(inputs)
    apart = torch.stack([mean - side_by_side(means), std - side_by_side(variances).sqrt()])
    by_mean, by_std = apart.sgn() * share
    a = (by_std / (std * (pixels - 1))).nan_to_num(0.0, 0.0, 0.0)  # a constant map has no way to vary
    c = torch.addcmul(by_mean / pixels, a, mean, value=-1)
    return (apart.abs() * share).sum(), a, c


def warmth(seen: int, warm: float) -> float:
    """λ_n = 1/(√n/warm + 1): from the test batch's statistics towards the source's as the stream goes on."""
    return float(1 / (seen**0.5 / warm + 1))


class Vptta:
    def __init__(
        self,
        network: nn.Module,
        *,
        lr: float,
        steps: int,
        size: float,
        warm: float,
        capacity: int,
        neighbours: int,
    ) -> None:
        self.network = network.eval().requires_grad_(False)
        self.lr, self.steps, self.size, self.warm, self.neighbours = lr, steps, size, warm, neighbours
        batchnorm.use(network, batchnorm.EVAL)  # says so where there is nothing to use
        self.mode, self.memory = Mixing(network, 1.0), Memory(capacity)
        batchnorm.use(network, self.mode)
        self.prompt: nn.Parameter
        self.optimiser: torch.optim.Optimizer
        self._windows: dict[tuple[int, int, torch.device], Window] = {}
        self._replay, self._reading = Replay(CaptureGuard(network)), Replay(CaptureGuard(network))
        self.reset()

    def __call__(self, images: Images) -> Logits:
        low = self._window(images).read(images)
        keys = low.abs().nan_to_num()
        self.seen += len(images)
        self.mode.rho = warmth(self.seen, self.warm)
        self._start(keys)
        prompt, share = self.prompt.detach()[: len(images)], self._share(images)
        for _ in range(self.steps):
            self.loss, *slope = self._replay(self._slope, images, low, prompt, share)
            if slope:  # else the image is too small for any layer's statistics
                self.prompt.grad = F.pad(slope[0], (0,) * 7 + (len(self.prompt) - len(images),))
                self.optimiser.step()
        logits: Logits = self._reading(self._read, images, low, prompt, share)
        self.memory.push(keys, prompt)
        return logits

    def predict_frozen(self, images: Images) -> Logits:
        low = self._window(images).read(images)
        return self._read(images, low, self._first(low.abs().nan_to_num()), self._share(images))

    def _slope(self, images: Images, low: Tensor, prompt: Tensor, share: Tensor) -> tuple[Tensor, ...]:
        """The mean misfit over layers, summed over images, and where there is one its gradient at their prompts."""
        met: list[tuple[LayerInput, Tensor]] = []
        with torch.enable_grad(), self.mode.one_pass(share, met):
            prompt = prompt.detach().requires_grad_()
            self.network(self._window(images).prompted(images, low, prompt))
        if not met:
            return (images.new_zeros(()),)
        inputs, means, variances = zip(*((m.x, m.mean, m.var) for m, _ in met), strict=True)
        with torch.enable_grad():
            loss = met_with_gradient(*misfit(inputs, means, variances), met)
        (gradient,) = torch.autograd.grad(loss, prompt)
        return loss.detach(), gradient.contiguous().nan_to_num(0.0, 0.0, 0.0)

    @torch.no_grad()
    def _read(self, images: Images, low: Tensor, prompt: Tensor, share: Tensor) -> Logits:
        with self.mode.one_pass(share):
            return self.network(self._window(images).prompted(images, low, prompt))  # type: ignore[no-any-return]

    @torch.no_grad()
    def _start(self, keys: Float[Tensor, "b c k k"]) -> None:
        if self.prompt.shape[1:] != keys.shape[1:] or len(self.prompt) < len(keys):
            self.prompt = nn.Parameter(torch.ones(keys.shape, device=keys.device))
            self.optimiser = torch.optim.Adam(
                [self.prompt], lr=self.lr, betas=(0.9, 0.99), fused=keys.is_cuda
            )
        self.prompt.fill_(1.0)
        self.prompt[: len(keys)] = self._first(keys)

    def _first(self, keys: Float[Tensor, "b c k k"]) -> Float[Tensor, "b c k k"]:
        """The prompt before the first step: the mean of its neighbours' where the memory is warm, else 1."""
        if len(self.memory) < self.neighbours or not self.memory.fits(keys):
            return torch.ones_like(keys)
        cosine, rows = self.memory.nearest(keys, self.neighbours)
        weights = (cosine / TEMPERATURE).softmax(1)
        return torch.einsum("bm,bmckl->bckl", weights, self.memory.columns[1][rows])

    def _share(self, images: Images) -> Float[Tensor, "1"]:
        """λ, where the images lie."""
        return images.new_full((1,), self.mode.rho)

    def _window(self, images: Images) -> Window:
        height, width = images.shape[-2:]
        key = (height, width, images.device)
        if key not in self._windows:
            self._windows[key] = window(height, width, max(1, int(self.size * min(key[:2]))), images.device)
        return self._windows[key]

    def reset(self) -> None:
        self.memory.clear()
        self.seen, self.mode.rho = 0, warmth(0, self.warm)
        self.prompt = nn.Parameter(torch.empty(0, 0, 0, 0))


def vptta(
    network: nn.Module,
    *,
    lr: float = 0.01,
    steps: int = 1,
    size: float = 0.01,
    warm: float = 5.0,
    capacity: int = 40,
    neighbours: int = 16,
) -> Adapter:
    return Vptta(network, lr=lr, steps=steps, size=size, warm=warm, capacity=capacity, neighbours=neighbours)


METHOD = Method(
    build=vptta,
    summary="a low-frequency prompt an image, learnt so that BatchNorm statistics fit warmed-up ones",
    adapts="prompt",
    norm="MIX(λₙ)",
    memory=True,
    forwards=2,
    backwards=1,
    predict="after",
    paper="Chen et al., CVPR 2024",
    origin="as published; lr 0.01 is the published value for polyps (0.05 for fundus)",
    needs=("BatchNorm",),
    reset="continual",
)
