"""VPTTA: train a low-frequency prompt for each image, so that its BatchNorm statistics match warm-up statistics.

Chen et al., Each Test Image Deserves A Specific Prompt: Continual Test-Time Adaptation for 2D Medical Image
Segmentation, CVPR 2024. The network is frozen; only the prompt and a memory of past prompts change.

Decisions: Frequencies are shifted along the image axes only; the authors' code also rolls batch and channels. In
larger batches each image has its own prompt, the losses are summed, and n counts images. The side of the window is a
fraction of the shorter image side. The memory holds 40 prompts, not 41. Adam's moments are kept from image to image,
as published, separately for each position in the batch; they restart with a larger batch or another image size. All
BatchNorm layers are used; the authors' code leaves out PraNet's decoder. `predict_frozen` uses the prompt that the
memory gives for the image, and the last λ.

Cost beyond the passes: two kernel calls for each layer, one for the statistics of each image and one for their
gradient; without the GPU program for BatchNorm, some more for the mixture in each pass. All other work is done for
all layers together. Gradient and prediction depend on their inputs only (λ is one of them), so that both are recorded
as CUDA graphs; Adam and the memory are not.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.fourier_prompt import FourierWindow, fourier_window
from ttdg.adaptation.memory import Memory
from ttdg.adaptation.options import COUNT, LR, POSITIVE, STEPS, Option, Range
from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.batched import BatchedMixMode, channel_weights_and_counts, concat_channels
from ttdg.networks.batchnorm.custom_grad import LayerInput, loss_with_fused_gradient
from ttdg.networks.capture import CaptureGuard
from ttdg.networks.cuda_graph import GraphRunner

TEMPERATURE = 0.2  # of the softmax over the neighbours' cosines


@torch.no_grad()
def misfit(
    inputs: Sequence[Tensor], means: Sequence[Tensor], variances: Sequence[Tensor]
) -> tuple[Float[Tensor, ""], Float[Tensor, "b channels"], Float[Tensor, "b channels"]]:
    """Distance of each image's statistics from the layers' statistics, and its gradient.

    Returns the loss Σ_images mean_layers mean_channels |μ − μ_image| + |σ − σ_image| and the coefficients a and c:
    the gradient of the loss with respect to the input x of a layer is a·x + c. Channels of all layers are concatenated.
    """
    statistics = zip(*(torch.var_mean(x, tuple(range(2, x.ndim))) for x in inputs), strict=True)
    var, mean = (concat_channels(values) for values in statistics)
    weight, pixels = channel_weights_and_counts(inputs, 1)
    std, weight = var.sqrt(), weight / len(inputs)
    differences = torch.stack([mean - concat_channels(means), std - concat_channels(variances).sqrt()])
    by_mean, by_std = differences.sgn() * weight
    a = (by_std / (std * (pixels - 1))).nan_to_num(0.0, 0.0, 0.0)  # σ of a constant map has no gradient
    c = torch.addcmul(by_mean / pixels, a, mean, value=-1)
    return (differences.abs() * weight).sum(), a, c


def warm_up_weight(images: int, warm: float) -> float:
    """λ_n = 1/(√n/warm + 1), the weight of the test statistics after n images; it falls towards 0."""
    return float(1 / (images**0.5 / warm + 1))


class Vptta:
    """The adapter of VPTTA.

    State: the number of images `seen`, the prompts of the last batch, Adam, and a memory of (key, prompt). One call:
    Fourier coefficients of the images, whose amplitudes are the keys; λ from the number of images; start each prompt
    from the nearest prompts in the memory, or from 1; `steps` Adam steps on the distance between the statistics
    of the prompted image and the mixed statistics; forward pass over the prompted images; push keys and prompts.
    """

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
        batchnorm.use(network, batchnorm.EVAL)  # raises UserError for a network without usable BatchNorm
        self.mode, self.memory = BatchedMixMode(network, 1.0), Memory(capacity)
        batchnorm.use(network, self.mode)
        self.prompt: nn.Parameter
        self.optimiser: torch.optim.Optimizer
        self._windows: dict[tuple[int, int, torch.device], FourierWindow] = {}
        self._gradient_runner = GraphRunner(CaptureGuard(network))
        self._prediction_runner = GraphRunner(CaptureGuard(network))
        self.reset()

    def __call__(self, images: Images) -> Logits:
        """Train a prompt for each image and return the logits of the prompted images."""
        coefficients = self._window(images).coefficients(images)
        keys = coefficients.abs()
        self.seen += len(images)
        self.mode.rho = warm_up_weight(self.seen, self.warm)
        self._start_prompts(keys)
        prompt, weight = self.prompt.detach()[: len(images)], self._test_weight(images)
        for _ in range(self.steps):
            self.loss, *gradient = self._gradient_runner(
                self._prompt_gradient, images, coefficients, prompt, weight
            )
            if gradient:  # none if the image is too small for the statistics of any layer
                self.prompt.grad = F.pad(gradient[0], (0,) * 7 + (len(self.prompt) - len(images),))
                self.optimiser.step()
        logits: Logits = self._prediction_runner(self._predict, images, coefficients, prompt, weight)
        self.memory.push(keys, prompt)
        return logits

    def predict_frozen(self, images: Images) -> Logits:
        """Return the logits with the prompts that the memory gives; nothing is trained or stored."""
        coefficients = self._window(images).coefficients(images)
        prompt = self._initial_prompts(coefficients.abs())
        return self._predict(images, coefficients, prompt, self._test_weight(images))

    def _prompt_gradient(
        self, images: Images, coefficients: Tensor, prompt: Tensor, weight: Tensor
    ) -> tuple[Tensor, ...]:
        """The loss, summed over images, and its gradient at the prompts; no gradient if no layer has statistics."""
        layer_inputs: list[tuple[LayerInput, Tensor]] = []
        with torch.enable_grad(), self.mode.one_pass(weight, layer_inputs):
            prompt = prompt.detach().requires_grad_()
            self.network(self._window(images).apply_prompt(images, coefficients, prompt))
        if not layer_inputs:
            return (images.new_zeros(()),)
        inputs, means, variances = zip(*((m.x, m.mean, m.var) for m, _ in layer_inputs), strict=True)
        with torch.enable_grad():
            loss = loss_with_fused_gradient(*misfit(inputs, means, variances), layer_inputs)
        (gradient,) = torch.autograd.grad(loss, prompt)
        return loss.detach(), gradient.contiguous().nan_to_num(0.0, 0.0, 0.0)

    @torch.no_grad()
    def _predict(self, images: Images, coefficients: Tensor, prompt: Tensor, weight: Tensor) -> Logits:
        with self.mode.one_pass(weight):
            return self.network(  # type: ignore[no-any-return]
                self._window(images).apply_prompt(images, coefficients, prompt)
            )

    @torch.no_grad()
    def _start_prompts(self, keys: Float[Tensor, "b c k k"]) -> None:
        """Set the prompts of this batch; restart Adam for another image size or a larger batch."""
        if self.prompt.shape[1:] != keys.shape[1:] or len(self.prompt) < len(keys):
            self.prompt = nn.Parameter(torch.ones(keys.shape, device=keys.device))
            self.optimiser = torch.optim.Adam(
                [self.prompt], lr=self.lr, betas=(0.9, 0.99), fused=keys.is_cuda
            )
        self.prompt.fill_(1.0)
        self.prompt[: len(keys)] = self._initial_prompts(keys)

    def _initial_prompts(self, keys: Float[Tensor, "b c k k"]) -> Float[Tensor, "b c k k"]:
        """Weighted mean of the nearest prompts, or 1 while the memory holds fewer than `neighbours`."""
        if len(self.memory) < self.neighbours or not self.memory.fits(keys):
            return torch.ones_like(keys)
        cosine, rows = self.memory.nearest(keys, self.neighbours)
        weights = (cosine / TEMPERATURE).softmax(1)
        return torch.einsum("bm,bmckl->bckl", weights, self.memory.columns[1][rows])

    def _test_weight(self, images: Images) -> Float[Tensor, "1"]:
        """λ as a tensor on the images' device."""
        return images.new_full((1,), self.mode.rho)

    def _window(self, images: Images) -> FourierWindow:
        height, width = images.shape[-2:]
        key = (height, width, images.device)
        if key not in self._windows:
            side = max(1, int(self.size * min(height, width)))
            self._windows[key] = fourier_window(height, width, side, images.device)
        return self._windows[key]

    def reset(self) -> None:
        """Forget memory, image count, prompts and Adam's moments."""
        self.memory.clear()
        self.seen, self.mode.rho = 0, warm_up_weight(0, self.warm)
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
    """Build the adapter of method `vptta`."""
    return Vptta(network, lr=lr, steps=steps, size=size, warm=warm, capacity=capacity, neighbours=neighbours)


METHOD = Method(
    build=vptta,
    summary="a low-frequency prompt for each image, trained so that BatchNorm statistics match warm-up statistics",
    adapts="prompt",
    norm="MIX(λₙ)",
    memory=True,
    forwards=2,
    backwards=1,
    predict="after",
    access="source-free",
    paper="Chen et al., CVPR 2024",
    origin="as published; lr 0.01 is the published value for polyps (0.05 for fundus)",
    published_for={"fundus": {"lr": 0.05}},
    options={
        "lr": LR.with_origin("the authors' code for polyps (Adam, betas 0.9 and 0.99); 0.05 for fundus"),
        "steps": STEPS.with_origin("the authors' code"),
        "size": Option(
            "side of the prompt's window as a fraction of the shorter image side, at least one frequency",
            "the authors' code",
            Range(0.0, 1.0, above=True),
        ),
        "warm": Option(
            "scale of the warm-up: larger values keep the test statistics longer",
            "the authors' code",
            POSITIVE,
        ),
        "capacity": Option("number of prompts that the memory holds", "the authors' code", COUNT),
        "neighbours": Option(
            "number of most similar prompts that start a new one", "the authors' code", COUNT
        ),
    },
    needs=("BatchNorm",),
    reset="continual",
)
