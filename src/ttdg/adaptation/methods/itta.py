"""ITTA: small mapping nets between the encoder's stages, trained by a consistency that was learnt at source time.

Chen et al., Improved Test-Time Adaptation for Domain Generalization, CVPR 2023.

Part `itta`: f_w, an element-wise net on pooled features, fitted so that the gradient of ‖f_w(z'−z)‖² points where the
supervised gradient does; z' are the features in another style (MixStyle). The original trains the network with it; here
the network is trained and frozen and f_w alone is fitted. Faithfulness it costs: the encoder was not made consistent.

Decisions: published for classification; for segmentation z is the mean of the deepest map and a mapping has one value a
channel (`mapping="element"` is the published form, one for each place, for images of one size). Images of a batch take
each other's style, none its own. At batch 1 the release mixes an image with itself, so its loss, and its adaptation, is
nothing; here the image before stands in, unless `remember=False`. The published factor 1e-6 (0.1 for DomainNet) on the
loss acts through Adam's ε alone; 0.1 here. Both styles run in one pass. Levels must not be negative (end in ReLU).
f_w is fitted with Adam at 1e-3 (published: 5e-6, over a whole training). A batch without one finite image leaves no
trace; the host waits to know.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.descent import Descent, any_finite_image, zero_non_finite
from ttdg.errors import UserError
from ttdg.networks import batchnorm, pyramid, split
from ttdg.networks.heads.consistency import ElementWise, MixStyle, pooled_features
from ttdg.networks.segmenter import pad_to_stride
from ttdg.types import Part

LAYERS = 5  # of a mapping net
FACTOR = 0.1  # on the loss


class Itta:
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
        if batchnorm.present(network):
            batchnorm.use(network, batchnorm.EVAL)
        self.lr, self.steps, self.mapping = lr, steps, mapping
        self.measure = ElementWise.from_part(part, next(network.parameters()).device)
        made = pyramid.level_modules(network)
        if any((level < 0).any() for _, level in made[1:]):
            raise UserError(
                "itta needs an encoder whose levels end in ReLU: its mapping nets cut off what is negative"
            )
        self.shapes = [level.shape[1:] for _, level in made[1:]]
        self.maps: nn.ModuleList | None = None
        self.sizes: list[tuple[int, int, int]]
        self.descent: Descent
        for number, (producer, _) in enumerate(made[1:]):
            producer.register_forward_hook(self._hook(number))
        self.styles = MixStyle([producer for producer, _ in made], seed, remember)

    def _hook(self, number: int) -> Any:
        def hook(module: nn.Module, inputs: Any, x: Tensor) -> Tensor | None:
            if self.maps is None or self.sizes[number][1:] not in ((1, 1), x.shape[-2:]):
                return None  # nothing was learnt yet, or not for images of this size
            return self.maps[number](x)

        return hook

    def __call__(self, images: Images) -> Logits:
        if any_finite_image(images):
            self._learn(pad_to_stride(zero_non_finite(images)))
        with torch.no_grad():
            return self.network(images)

    def _learn(self, images: Images) -> None:
        self._begin(images)
        for _ in range(self.steps):
            with torch.enable_grad():
                loss = self.objective(images)
            self.descent.step(loss)
            self.loss = loss.detach()
        self.styles.next_batch()

    def objective(self, images: Images) -> Tensor:
        """0.1·MSE(f_w(z' − z), 0)."""
        z, other = pooled_features(self.styles.twice(self.network, images))
        return FACTOR * self.measure(other - z).square().mean()

    def _begin(self, images: Images) -> None:
        """The mapping nets, at the first batch; those of single places anew where the size is another."""
        scale = [side / pyramid.SIDE for side in images.shape[-2:]]
        sizes = [
            (c, 1, 1) if self.mapping == "channel" else (c, round(h * scale[0]), round(w * scale[1]))
            for c, h, w in self.shapes
        ]
        if self.maps is not None and self.sizes == sizes:
            return
        self.sizes = sizes
        self.maps = nn.ModuleList(ElementWise(size, LAYERS) for size in sizes).to(images.device)
        self.descent = Descent(self.maps.parameters(), lr=self.lr)

    def reset(self) -> None:
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
    return Itta(network, part, lr=lr, steps=steps, mapping=mapping, remember=remember, seed=seed)


METHOD = Method(
    build=itta,
    summary="mapping nets between the encoder's stages, trained by a consistency learnt on source images",
    adapts="mapping nets",
    norm="EVAL",
    memory=True,
    forwards=3,
    backwards=2,
    predict="after",
    paper="Chen et al., CVPR 2023",
    origin="Adam, lr 5e-6, 1 step as published; the segmentation form and the part fitted afterwards are ours",
    needs=("encode/decode",),
    parts=("itta",),
    reset="continual",
    grid={"lr": (5e-6, 1e-4, 1e-3), "steps": (1, 3)},
)
