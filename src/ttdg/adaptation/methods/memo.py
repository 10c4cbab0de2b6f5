"""MEMO: one step on the entropy of the prediction averaged over views, anew for each batch.

Zhang et al., MEMO: Test Time Robustness via Adaptation and Augmentation, NeurIPS 2022.

Decisions: the marginal is taken pixel by pixel over views that are turned back (an average over pixels too would
only ask for a sure share of foreground); views are the symmetries of the square under other lights, the first being
the image itself, and every call draws the same ones, so that no answer depends on those before it; BatchNorm mixes
1/17 of the batch's statistics into the source's, the published N = 16 at one image.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.adaptation import losses
from ttdg.adaptation import views as symmetries
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.networks import batchnorm


class OfViews:
    """`batchnorm.Mix` with the statistics of each view for itself, where `views` views of an image lie next to each
    other along the batch: to BatchNorm they are one image of so many times the channels."""

    def __init__(self, rho: float) -> None:
        self.mix, self.views = batchnorm.MixMode(rho), 1

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        k = self.views
        if k == 1 or batchnorm.has_too_few_values(x[::k]):
            return (self.mix if k == 1 else batchnorm.EVAL)(layer, x)
        mean, var = (buffer.repeat(k) for buffer in batchnorm.running(layer))
        wide = x.reshape(len(x) // k, k * x.shape[1], *x.shape[2:])
        torch.batch_norm_update_stats(wide.detach(), mean, var, self.mix.rho)
        weight, bias = (None if p is None else p.repeat(k) for p in (layer.weight, layer.bias))
        fast = torch.backends.cudnn.enabled
        return torch.batch_norm(wide, weight, bias, mean, var, False, 0.0, layer.eps, fast).view_as(x)


class Memo(GradientAdapter):
    def __init__(
        self, network: nn.Module, *, lr: float, steps: int, views: int, alpha: float, head: losses.Head, seed: int
    ) -> None:  # fmt: skip
        self.views, self.head, self.seed = views, head, seed
        self.mode = OfViews(alpha)
        if batchnorm.present(network):
            batchnorm.use(network, self.mode)
        self.generator = torch.Generator(next(network.parameters()).device)

        def objective(logits: Logits) -> Tensor:
            return losses.entropy(logits, head).mean()

        super().__init__(
            network, objective, list(network.parameters()),
            lr=lr, steps=steps, predict="after", optimiser=torch.optim.SGD,
        )  # fmt: skip

    def __call__(self, images: Images) -> Logits:
        self.restart()
        self.generator.manual_seed(self.seed)
        for _ in range(self.steps):
            with torch.enable_grad():
                loss = self.objective(self._marginal(images))
            self._update(loss)
        with torch.no_grad():
            return self.network(images)

    def _marginal(self, images: Images) -> Logits:
        """Logits of the mean prediction over views, in one pass, or in two where a quarter turn changes the shape."""
        views = [symmetries.SQUARE[i % len(symmetries.SQUARE)] for i in range(self.views)]
        seen = [view(light) for view, light in zip(views, self._lights(images), strict=True)]
        members: list[Tensor] = []
        for shape in dict.fromkeys(x.shape for x in seen):
            alike = [(view, x) for view, x in zip(views, seen, strict=True) if x.shape == shape]
            answers = self._together([x for _, x in alike])
            members += [view.back(logits) for (view, _), logits in zip(alike, answers, strict=True)]
        return losses.mixture(torch.stack(members), self.head)

    def _together(self, views: list[Tensor]) -> tuple[Tensor, ...]:
        """What the network makes of each view, in one pass."""
        self.mode.views = len(views)
        try:
            logits = self.network(torch.stack(views, 1).flatten(0, 1))
        finally:
            self.mode.views = 1
        return logits.unflatten(0, (-1, len(views))).unbind(1)  # type: ignore[no-any-return]

    def _lights(self, images: Images) -> list[Tensor]:
        """The images themselves, then under other lights, all drawn at once."""
        others = self.views - 1
        if not others:
            return [images]
        return [
            images,
            *symmetries.photometric_view(images.repeat(others, 1, 1, 1), self.generator).chunk(others),
        ]


def memo(
    network: nn.Module,
    *,
    lr: float = 1e-4,
    steps: int = 1,
    views: int = 8,
    alpha: float = 1 / 17,
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    return Memo(network, lr=lr, steps=steps, views=views, alpha=alpha, head=head, seed=seed)


METHOD = Method(
    build=memo,
    summary="one step on the entropy of the mean prediction over views, anew for each batch",
    adapts="all weights",
    norm="MIX(alpha)",
    memory=False,
    forwards=9,
    backwards=8,
    predict="after",
    paper="Zhang et al., NeurIPS 2022",
    origin="SGD, 1 step, N = 16 for BatchNorm as published; 8 views (published 32) and lr 1e-4 "
    "(published 5e-3 and 2.5e-4 for classification) are ours",
    reset="episodic",
)
