"""TASD-R: a RECONSTRUCTION of TASD. Two views must agree on their masks and on shapes from a source dictionary.

After Liu et al., Single-Domain Generalization in Medical Image Segmentation via Test-Time Adaptation from Shape
Dictionary, AAAI 2022. No code was published. We know only the outline of the method: a dictionary of source masks, a
branch that predicts coefficients, and a dual consistency at test time. Everything else here is our choice, so no number
of this method is a number of TASD.

Part `tasd-r`: the dictionary (non-negative, sparse, 32 atoms for each structure), the regression head, and a
convolution that corrects the logits by the shape prior. All are fitted to the trained, frozen network, so that all
methods share one source model and the uncorrected logits are the source's. The original injects the prior while it
trains the network.

Decisions: If a structure has several pieces, the largest is its shape. The loss of the head divides the distance of the
coefficients by their number (see `training/parts`). The two views are photometric and share one forward pass with batch
statistics. Coefficients are compared by their squared distance, summed for each image; masks are compared with each
other and with their priors by soft Dice. A constant prediction also satisfies both agreements, so there is only one
small step.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.descent import Descent, Snapshot
from ttdg.adaptation.options import LR, SEED, STEPS
from ttdg.checkpoints import reading_part
from ttdg.networks import batchnorm, split
from ttdg.networks.heads.shapes import ShapeHead
from ttdg.networks.losses import soft_dice
from ttdg.networks.segmenter import pad_to_stride
from ttdg.types import Part

STRENGTH = {"brightness": 0.1, "contrast": 0.2, "gamma": 0.2, "noise": 0.02}  # for images scaled to [0, 1]


def mild_photometric_view(images: Images, generator: torch.Generator) -> Images:
    """Change contrast, brightness, gamma and noise of each image at random, relative to its range of values."""

    def uniform(strength: float, *shape: int) -> Tensor:
        value = torch.rand(shape or (len(images), 1, 1, 1), generator=generator, device=images.device)
        return strength * (2 * value - 1)

    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    span = (high - low).clamp(min=1e-6)
    u = (images - low) / span
    mean = u.mean((1, 2, 3), keepdim=True)
    u = mean + (1 + uniform(STRENGTH["contrast"])) * (u - mean) + uniform(STRENGTH["brightness"])
    u = u.clamp(1e-6, 1) ** uniform(STRENGTH["gamma"]).exp() + uniform(STRENGTH["noise"], *images.shape)
    return low + span * u


def dice_disagreement(a: Float[Tensor, "b n h w"], b: Float[Tensor, "b n h w"]) -> Tensor:
    """1 − soft Dice, averaged over images and structures."""
    return (1 - soft_dice(a, b)).mean()


class TasdR:
    """The adapter of TASD-R.

    State: γ, β, shape head and fusion, kept only until the next batch, and a random generator. One call: restore the
    source; `steps` times, draw two photometric views, compute the loss of their agreement and take one Adam step;
    forward pass over the images for the prediction.
    """

    def __init__(self, network: nn.Module, part: Part, *, lr: float, steps: int, seed: int) -> None:
        self.network = split.require_split(network.eval().requires_grad_(False))
        self.steps, self.seed = steps, seed
        device = next(network.parameters()).device
        with reading_part("tasd-r"):
            self.shapes, self.head = ShapeHead.from_part(part, device), part.settings["head"]
        batchnorm.use(network, batchnorm.BATCH)
        trained = [*batchnorm.affine_parameters(network), *self.shapes.parameters()]
        self.descent, self._source = Descent(trained, lr=lr), Snapshot(trained)
        self.generator = torch.Generator(device)

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch from the source and return its logits after the update."""
        self.reset()
        for _ in range(self.steps):
            views = [mild_photometric_view(images, self.generator) for _ in range(2)]
            with torch.enable_grad():
                loss = self.objective(torch.cat(views))
            self.descent.step(loss)
            self.loss = loss.detach()
        return self.predict_frozen(images)

    @torch.no_grad()
    def predict_frozen(self, images: Images) -> Logits:
        """Return the corrected logits with the weights of the last batch, without a step."""
        return self._predict(images)[0]

    def objective(self, views: Images) -> Tensor:
        """L_shape + L_mask of two views, concatenated along the batch."""
        logits, codes, prior = self._predict(views)
        masks = logits.softmax(1)[:, 1:] if self.head == "softmax" else logits.sigmoid()
        (codes1, codes2), (masks1, masks2) = codes.chunk(2), masks.chunk(2)
        shape_loss = (codes1 - codes2).square().sum((1, 2)).mean()
        return shape_loss + dice_disagreement(masks1, masks2) + dice_disagreement(masks, prior)

    def _predict(self, images: Images) -> tuple[Logits, Float[Tensor, "b n k"], Float[Tensor, "b n h w"]]:
        """Corrected logits, dictionary coefficients and shape priors."""
        inputs = pad_to_stride(images)
        features = self.network.encode(inputs)
        codes, centres = self.shapes.codes(features[-1])
        prior = self.shapes.prior(codes, centres, (inputs.shape[-2], inputs.shape[-1]))
        logits = self.shapes.corrected(self.network.decode(features), prior)
        return split.crop(logits, images), codes, split.crop(prior, images)

    def reset(self) -> None:
        """Return to the source, with a new optimiser and the first random numbers."""
        self._source.restore()
        self.descent.restart()
        self.generator.manual_seed(self.seed)


def tasd_r(network: nn.Module, part: Part, *, lr: float = 1e-4, steps: int = 1, seed: int = 0) -> Adapter:
    """Build the adapter of method `tasd-r`."""
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
    access="source labels",
    single_precision=True,
    post_hoc=True,
    paper="reconstructed after Liu et al., AAAI 2022 (no code published)",
    origin="all our choice: a reconstruction from the paper's outline, with the part fitted afterwards",
    published=None,
    options={
        "lr": LR.with_origin(
            "this project: no value is published, and larger steps lead to constant predictions"
        ),
        "steps": STEPS.with_origin("this project: one, because constant predictions also minimise the loss"),
        "seed": SEED,
    },
    needs=("BatchNorm", "encode/decode", "segmentation"),
    parts=("tasd-r",),
    reset="episodic",
)
