"""DeY-Net: adapt BatchNorm by the loss of a second decoder that removes blind-spot noise.

Wen et al., From Denoising Training to Test-Time Adaptation: Enhancing Domain Generalization for Medical Image
Segmentation, WACV 2024.

Part `deynet`: a denoising decoder on the network's encoder. The paper trains both decoders together and segments
corrupted images; here the denoiser is fitted to the trained, frozen network, so that all methods share one source
model. The encoder is therefore not trained to denoise, and the segmentation not trained on corrupted pixels. The
denoiser has one convolution per level and at most 128 channels; published: a second copy of the network's decoder.

Decisions: The published loop adapts to a whole folder and then predicts it. On a stream, each batch is one step and is
predicted afterwards: the mean probability over `copies` corrupted copies, as the authors' flag `--average` does.
`copies=0` predicts the image itself, which suits a network that was not trained on corrupted images. The three colour
channels share the corrupted positions. The target is the image in [0, 1], before the benchmark's normalisation. Adam
has γ and β of all BatchNorm layers, but those of the segmentation decoder get no gradient; its running statistics move
like the others. With the published lr of 1e-6 nearly all of the effect is due to the running statistics; `lr=0`
shows how much.
"""

import torch
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.descent import Descent, Snapshot
from ttdg.adaptation.options import HEAD, LR, SEED, STEPS, WEIGHT, Option
from ttdg.checkpoints import reading_part
from ttdg.networks import batchnorm, split
from ttdg.networks.heads.denoiser import Denoiser, corrupt, denoising_loss
from ttdg.networks.segmenter import pad_to_stride
from ttdg.types import Part


class DeyNet:
    """The adapter of DeY-Net.

    State: γ, β and running statistics of network and `denoiser`, Adam, and a random generator. One call: `steps` Adam
    steps on the denoising loss of a newly corrupted batch, with BatchNorm in TRAIN mode; then, in EVAL mode, the mean
    prediction over `copies` corrupted copies of the batch.
    """

    def __init__(
        self,
        network: nn.Module,
        part: Part,
        *,
        lr: float,
        steps: int,
        copies: int,
        head: losses.Head,
        seed: int,
    ) -> None:
        self.network = split.require_split(network.eval().requires_grad_(False))
        self.steps, self.copies, self.head, self.seed = steps, copies, head, seed
        first = next(network.parameters())
        with reading_part("deynet"):
            self.denoiser = Denoiser.from_part(part, first.device)
            self.mean, self.std = (first.new_tensor(part.settings[k]).view(-1, 1, 1) for k in ("mean", "std"))
        batchnorm.use(network, batchnorm.EVAL)
        batchnorm.use(self.denoiser, batchnorm.TRAIN)
        both = (network, self.denoiser)
        self.descent = Descent(
            (p for module in both for p in batchnorm.affine_parameters(module)), lr=lr, betas=(0.9, 0.99)
        )
        self._source = Snapshot(
            value for module in both for value in module.state_dict(keep_vars=True).values()
        )
        self.generator = torch.Generator(first.device)
        self.reset()

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch and return its logits after the update."""
        batchnorm.use(self.network, batchnorm.TRAIN)
        for _ in range(self.steps):
            with torch.enable_grad():
                loss = self.objective(images)
            self.descent.step(loss)
            self.loss = loss.detach()
        batchnorm.use(self.network, batchnorm.EVAL)
        return self._predict(images)

    def predict_frozen(self, images: Images) -> Logits:
        """Return the logits without a step; later batches get the same random numbers as without this call."""
        state = self.generator.get_state()
        try:
            return self._predict(images)
        finally:
            self.generator.set_state(state)

    @torch.no_grad()
    def _predict(self, images: Images) -> Logits:
        """Logits of the mean over corrupted copies, or of the images themselves if `copies` is 0."""
        if self.copies == 0:
            return self.network(images)
        predictions = [self.network(corrupt(images, self.generator)[0]) for _ in range(self.copies)]
        return losses.mixture(torch.stack(predictions), self.head)

    def objective(self, images: Images) -> Tensor:
        """Denoising loss of a new corruption; the segmentation decoder runs too, to update its statistics."""
        corrupted, where = corrupt(images, self.generator)
        features = split.encode(self.network, corrupted)
        with torch.no_grad():
            self.network.decode(tuple(level.detach() for level in features))
        denoised = split.crop(self.denoiser(features, pad_to_stride(images)), images)
        return denoising_loss(denoised, images * self.std + self.mean, where)

    def reset(self) -> None:
        """Return network, denoiser, optimiser and random generator to their start."""
        self._source.restore()
        self.descent.restart()
        self.generator.manual_seed(self.seed)


def deynet(
    network: nn.Module,
    part: Part,
    *,
    lr: float = 1e-6,
    steps: int = 1,
    copies: int = 2,
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    """Build the adapter of method `deynet`."""
    return DeyNet(network, part, lr=lr, steps=steps, copies=copies, head=head, seed=seed)


METHOD = Method(
    build=deynet,
    summary="BatchNorm adapted by the loss of a denoising decoder that was fitted on source images",
    adapts="BatchNorm statistics, γ, β of the encoder",
    norm="TRAIN, then EVAL",
    memory=True,
    forwards=3,
    backwards=1,
    predict="after",
    access="source images",
    single_precision=True,
    post_hoc=True,
    paper="Wen et al., WACV 2024",
    origin="Adam, lr 1e-6, 1 step as published; a stream instead of folders and the part fitted afterwards are ours",
    options={
        "lr": LR.with_origin("the authors' code (Adam, betas 0.9 and 0.99)"),
        "steps": STEPS.with_origin("the authors' code: one epoch over a folder; here one step on each batch"),
        "copies": Option(
            "corrupted copies whose predictions are averaged; 0 predicts the image itself",
            "the authors' code with its flag --average",
            WEIGHT,
        ),
        "head": HEAD,
        "seed": SEED,
    },
    needs=("BatchNorm", "encode/decode", "segmentation"),
    parts=("deynet",),
    reset="online",
    grid={"lr": (1e-6, 1e-4), "copies": (0, 2)},
)
