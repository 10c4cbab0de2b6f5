"""DeY-Net: a second decoder that removes blind-spot noise; at test time its loss alone moves BatchNorm.

Wen et al., From Denoising Training to Test-Time Adaptation: Enhancing Domain Generalization for Medical Image
Segmentation, WACV 2024.

Part `deynet`: the denoising decoder on the network's encoder. The original trains both decoders together, segmenting
corrupted images; here the denoiser is fitted to the trained, frozen network, so that the source model is every other
method's. Faithfulness it costs: the encoder never learnt to denoise, nor the segmentation to bear corrupted pixels.
The decoder is one of its own, a convolution a level, 128 channels at most (published: a second copy of the network's).

Decisions: the published loop adapts to a whole folder and then answers it; on a stream, each batch is one step and is
then answered, the mean probability over `copies` corrupted copies, as its option `--average` does; `copies=0` answers
the image itself, which spares a network that never learnt from corrupted ones. RGB channels share
their positions. The target is the image in [0, 1], undoing the benchmark's normalisation. γ, β of all BatchNorm layers
are given to Adam, but those of the segmentation decoder get no gradient; its running statistics move as the others'.
With the published lr 1e-6 nearly all of the effect is the running statistics: `lr=0` shows how much. A batch without
one finite image leaves no trace; the host waits to know.
"""

import torch
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.descent import Descent, Snapshot, any_finite_image, zero_non_finite
from ttdg.networks import batchnorm, split
from ttdg.networks.heads.denoiser import Denoiser, corrupt, denoising_loss
from ttdg.networks.segmenter import pad_to_stride
from ttdg.types import Part


class DeyNet:
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
        self.denoiser = Denoiser.from_part(part, first.device)
        self.mean, self.std = (first.new_tensor(part.settings[k]).view(-1, 1, 1) for k in ("mean", "std"))
        batchnorm.use(network, batchnorm.EVAL)
        batchnorm.use(self.denoiser, batchnorm.TRAIN)
        both = (network, self.denoiser)
        self.descent = Descent(
            (p for module in both for p in batchnorm.affine(module)), lr=lr, betas=(0.9, 0.99)
        )
        self._source = Snapshot(value for module in both for value in module.state_dict().values())
        self.generator = torch.Generator(first.device)
        self.reset()

    def __call__(self, images: Images) -> Logits:
        if not any_finite_image(images):
            with torch.no_grad():
                return self.network(images)
        safe = zero_non_finite(images)
        batchnorm.use(self.network, batchnorm.TRAIN)
        for _ in range(self.steps):
            with torch.enable_grad():
                loss = self.objective(safe)
            self.descent.step(loss)
            self.loss = loss.detach()
        batchnorm.use(self.network, batchnorm.EVAL)
        return self.predict_frozen(images)

    @torch.no_grad()
    def predict_frozen(self, images: Images) -> Logits:
        """The answer without a step: the mean of corrupted copies, or the network's own where there are none."""
        if self.copies == 0:
            return self.network(images)
        answers = [self.network(corrupt(images, self.generator)[0]) for _ in range(self.copies)]
        return losses.mixture(torch.stack(answers), self.head)

    def objective(self, images: Images) -> Tensor:
        """L_D of a fresh corruption. The segmentation decoder runs too: its running statistics move with it."""
        corrupted, where = corrupt(images, self.generator)
        features = split.encode(self.network, corrupted)
        with torch.no_grad():
            self.network.decode(tuple(level.detach() for level in features))
        denoised = split.crop(self.denoiser(features, pad_to_stride(images)), images)
        return denoising_loss(denoised, images * self.std + self.mean, where)

    def reset(self) -> None:
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
    return DeyNet(network, part, lr=lr, steps=steps, copies=copies, head=head, seed=seed)


METHOD = Method(
    build=deynet,
    summary="BatchNorm moved by the loss of a denoising decoder that was fitted on source images",
    adapts="BatchNorm statistics, γ, β of the encoder",
    norm="TRAIN, then EVAL",
    memory=True,
    forwards=3,
    backwards=1,
    predict="after",
    paper="Wen et al., WACV 2024",
    origin="Adam, lr 1e-6, 1 step as published; a stream instead of folders and the part fitted afterwards are ours",
    needs=("BatchNorm", "encode/decode"),
    parts=("deynet",),
    reset="online",
    grid={"lr": (1e-6, 1e-4), "copies": (0, 2)},
)
