"""ITTA: train small mapping nets between the encoder's stages by a consistency loss fitted at source time.

Chen et al., Improved Test-Time Adaptation for Domain Generalization, CVPR 2023.

Part `itta`: f_w, an element-wise net on pooled features, fitted so that the gradient of ‖f_w(z'−z)‖² points in the
direction of the supervised gradient; z' are the features of the image in another style (MixStyle). The paper trains the
network together with f_w; here the network is trained and frozen, and only f_w is fitted. The encoder is therefore not
trained to be consistent.

Decisions: The paper is about classification. For segmentation, z is the mean of the deepest feature map, and a
mapping has one value per channel; `mapping="element"` is the published form, with one value per position, for images
of one size. The images of a batch take each other's styles, never their own. At batch 1 the authors' code mixes an
image with itself, so that the loss and its gradient are 0; here the previous image gives the style, unless
`remember=False`. The published factor on the loss, 1e-6 (0.1 for DomainNet), acts only through Adam's ε; here it is
0.1. Both styles run in one pass. Feature maps must not be negative (the levels end in ReLU). f_w is fitted with Adam
at 1e-3; published: 5e-6, over a whole training.
"""

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.descent import Descent
from ttdg.adaptation.options import LR, SEED, STEPS, Option
from ttdg.checkpoints import reading_part
from ttdg.errors import UserError
from ttdg.networks import batchnorm, pyramid, split
from ttdg.networks.heads.consistency import ElementWiseNet, MixStyle, pooled_features
from ttdg.networks.segmenter import pad_to_stride
from ttdg.types import Part

LAYERS = 5  # of a mapping net
FACTOR = 0.1  # of the loss


class Itta:
    """The adapter of ITTA.

    State: the mapping nets (`maps`), Adam, and the style of the last batch. The nets are applied by forward hooks after
    every level of the encoder except the first; at the level where styles are mixed, the net maps the mixed features.
    One call: create the nets at the first batch; `steps` Adam steps on the consistency of the features under two
    styles; forward pass over the images for the prediction.
    """

    def __init__(
        self,
        network: nn.Module,
        part: Part,
        *,
        lr: float,
        steps: int,
        mapping: Literal["channel", "element"],
        remember: bool,
        seed: int,
    ) -> None:
        self.network = split.require_split(network.eval().requires_grad_(False))
        batchnorm.use_if_any(network, batchnorm.EVAL)
        self.lr, self.steps, self.mapping = lr, steps, mapping
        with reading_part("itta"):
            self.measure = ElementWiseNet.from_part(part, next(network.parameters()).device)
        levels = pyramid.level_modules(network)
        if any((level < 0).any() for _, level in levels[1:]):
            raise UserError(
                "method 'itta' needs an encoder whose levels end in ReLU, because its mapping nets set negative "
                "values to 0; use another encoder or another method"
            )
        self.shapes = [level.shape[1:] for _, level in levels[1:]]
        self.maps: nn.ModuleList | None = None
        self.sizes: list[tuple[int, int, int]]
        self.descent: Descent
        self.styles = MixStyle([producer for producer, _ in levels], seed, remember)  # before the maps
        for number, (producer, _) in enumerate(levels[1:]):
            producer.register_forward_hook(partial(self._mapped, number))

    def _mapped(self, number: int, module: nn.Module, inputs: Any, x: Tensor) -> Tensor | None:
        """The hook of one level: what its mapping net makes of the output of the module."""
        if self.maps is None or self.sizes[number][1:] not in ((1, 1), x.shape[-2:]):
            return None  # no nets yet, or none for images of this size
        return self.maps[number](x)

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch and return its logits after the update."""
        self._train_maps(pad_to_stride(images))
        with torch.no_grad():
            return self.network(images)

    def _train_maps(self, images: Images) -> None:
        self._create_maps(images)
        for _ in range(self.steps):
            with torch.enable_grad():
                loss = self.objective(images)
            self.descent.step(loss)
            self.loss = loss.detach()
        self.styles.next_batch()

    def objective(self, images: Images) -> Tensor:
        """0.1·MSE(f_w(z' − z), 0)."""
        z, other = pooled_features(self.styles.encode_both(self.network, images))
        return FACTOR * self.measure(other - z).square().mean()

    def _create_maps(self, images: Images) -> None:
        """Create the mapping nets at the first batch; with `mapping="element"`, again for another image size."""
        scale = [side / pyramid.SIDE for side in images.shape[-2:]]
        sizes = [
            (c, 1, 1) if self.mapping == "channel" else (c, round(h * scale[0]), round(w * scale[1]))
            for c, h, w in self.shapes
        ]
        if self.maps is not None and self.sizes == sizes:
            return
        self.sizes = sizes
        self.maps = nn.ModuleList(ElementWiseNet(size, LAYERS) for size in sizes).to(images.device)
        self.descent = Descent(self.maps.parameters(), lr=self.lr)

    def reset(self) -> None:
        """Remove the mapping nets and forget the last style."""
        self.styles.reset()
        self.maps = None


def itta(
    network: nn.Module,
    part: Part,
    *,
    lr: float = 5e-6,
    steps: int = 1,
    mapping: Literal["channel", "element"] = "channel",
    remember: bool = True,
    seed: int = 0,
) -> Adapter:
    """Build the adapter of method `itta`."""
    return Itta(network, part, lr=lr, steps=steps, mapping=mapping, remember=remember, seed=seed)


METHOD = Method(
    build=itta,
    summary="mapping nets between the encoder's stages, trained by a consistency loss fitted on source images",
    adapts="mapping nets",
    norm="EVAL",
    memory=True,
    forwards=3,
    backwards=2,
    predict="after",
    access="source labels",
    post_hoc=True,
    paper="Chen et al., CVPR 2023",
    origin="Adam, lr 5e-6, 1 step as published; the segmentation form and the part fitted afterwards are ours",
    published={"mapping": "element"},
    options={
        "lr": LR.with_origin("the authors' code (Adam)"),
        "steps": STEPS.with_origin("the authors' code"),
        "mapping": Option(
            "values of a mapping net: one per channel, or one per channel and position",
            "this project: channel, which fits any image size; the authors' code has element",
        ),
        "remember": Option(
            "at batch 1, mix the style of the previous image",
            "this project: without it the loss of a single image is 0, as in the authors' code",
        ),
        "seed": SEED,
    },
    needs=("encode/decode",),
    parts=("itta",),
    reset="continual",
    grid={"lr": (5e-6, 1e-4, 1e-3), "steps": (1, 3)},
)
