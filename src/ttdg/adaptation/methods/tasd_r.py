"""TASD-R: a RECONSTRUCTION of TASD. Shape priors read from a dictionary of source shapes; two views must agree on them.

After Liu et al., Single-Domain Generalization in Medical Image Segmentation via Test-Time Adaptation from Shape
Dictionary, AAAI 2022. No code was published; of the method only its outline is known to us: a dictionary of source
masks, a branch that predicts coefficients, and a dual consistency at test time. Everything else here is our choice,
so no number of this method is TASD's.

Part `tasd-r`: the dictionary (non-negative, sparse, 32 atoms a structure), the regression head, and a convolution that
corrects the logits by the pasted prior. All fitted to the trained, frozen network: the source model stays every other
method's, and the uncorrected logits are its own. The original injects the prior while it trains the network. Of a
structure in several pieces the largest is the shape, in the dictionary and in what the head learns. The head's loss
weighs the coefficients' distance by one over their number (`training/extras.py` says why).

Per batch, from the source again: two photometric views in one pass with BATCH statistics; coefficients must agree
(squared distance, summed for each image), and masks with each other and with their priors (soft Dice); one Adam step on
γ, β, head and fusion; the answer is the updated model's on the image itself. Both agreements are also met by a constant
answer, hence one small step.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.descent import Descent, Snapshot
from ttdg.networks import batchnorm, split
from ttdg.networks.heads.shapes import ShapeHead
from ttdg.networks.segmenter import pad_to_stride
from ttdg.types import Part

STRENGTH = {
    "brightness": 0.1,
    "contrast": 0.2,
    "gamma": 0.2,
    "noise": 0.02,
}  # of a view, of the image's range


def photometric(images: Images, generator: torch.Generator) -> Images:
    """Another light: contrast, brightness, gamma and noise within each image's own range of values."""

    def drawn(strength: float, *shape: int) -> Tensor:
        value = torch.rand(shape or (len(images), 1, 1, 1), generator=generator, device=images.device)
        return strength * (2 * value - 1)

    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    span = (high - low).clamp(min=1e-6)
    u = (images - low) / span
    mean = u.mean((1, 2, 3), keepdim=True)
    u = mean + (1 + drawn(STRENGTH["contrast"])) * (u - mean) + drawn(STRENGTH["brightness"])
    u = u.clamp(1e-6, 1) ** drawn(STRENGTH["gamma"]).exp() + drawn(STRENGTH["noise"], *images.shape)
    return low + span * u


def disagreement(a: Float[Tensor, "b n h w"], b: Float[Tensor, "b n h w"]) -> Tensor:
    """1 − soft Dice, over images and structures."""
    overlap, sizes = (a * b).sum((2, 3)), (a + b).sum((2, 3))
    return (1 - (2 * overlap + 1) / (sizes + 1)).mean()


class TasdR:
    def __init__(self, network: nn.Module, part: Part, *, lr: float, steps: int, seed: int) -> None:
        self.network = split.require_split(network.eval().requires_grad_(False))
        self.steps, self.seed = steps, seed
        device = next(network.parameters()).device
        self.shapes, self.head = ShapeHead.from_part(part, device), part.settings["head"]
        batchnorm.use(network, batchnorm.BATCH)
        learnt = [*batchnorm.affine(network), *self.shapes.parameters()]
        self.descent, self._source = Descent(learnt, lr=lr), Snapshot(learnt)
        self.generator = torch.Generator(device)

    def __call__(self, images: Images) -> Logits:
        self.reset()
        for _ in range(self.steps):
            views = [photometric(images, self.generator) for _ in range(2)]
            with torch.enable_grad():
                loss = self.objective(torch.cat(views))
            self.descent.step(loss)
            self.loss = loss.detach()
        with torch.no_grad():
            return self._answer(images)[0]

    def objective(self, views: Images) -> Tensor:
        """L_shape + L_mask of two views, one stacked on the other."""
        logits, codes, prior = self._answer(views)
        masks = logits.softmax(1)[:, 1:] if self.head == "softmax" else logits.sigmoid()
        (one, two), (here, there) = codes.chunk(2), masks.chunk(2)
        apart = (one - two).square().sum((1, 2)).mean()
        return apart + disagreement(here, there) + disagreement(masks, prior)

    def _answer(self, images: Images) -> tuple[Logits, Float[Tensor, "b n k"], Float[Tensor, "b n h w"]]:
        """Corrected logits, coefficients and prior maps."""
        inputs = pad_to_stride(images)
        features = self.network.encode(inputs)
        codes, centres = self.shapes.codes(features[-1])
        prior = self.shapes.prior(codes, centres, (inputs.shape[-2], inputs.shape[-1]))
        logits = self.shapes.corrected(self.network.decode(features), prior)
        return split.crop(logits, images), codes, split.crop(prior, images)

    def reset(self) -> None:
        self._source.restore()
        self.descent.restart()
        self.generator.manual_seed(self.seed)


def tasd_r(network: nn.Module, part: Part, *, lr: float = 1e-4, steps: int = 1, seed: int = 0) -> Adapter:
    return TasdR(network, part, lr=lr, steps=steps, seed=seed)


METHOD = Method(
    build=tasd_r,
    summary="a reconstruction of TASD: two views must agree on masks and on shapes from a source dictionary",
    adapts="BatchNorm γ, β, shape head and fusion",
    norm="BATCH",
    memory=False,
    forwards=3,
    backwards=2,
    predict="after",
    paper="reconstructed after Liu et al., AAAI 2022 (no code published)",
    origin="all our choice: a reconstruction from the paper's outline, with the part fitted afterwards",
    needs=("BatchNorm", "encode/decode"),
    parts=("tasd-r",),
    reset="episodic",
)
