"""MEMO: one step on the entropy of the mean prediction over views, from the source for each batch.

Zhang et al., MEMO: Test Time Robustness via Adaptation and Augmentation, NeurIPS 2022.

Decisions: The mean prediction is taken pixel by pixel, over views that are undone. A mean over pixels too would only
require a sure share of foreground. The views are the symmetries of the square with photometric changes; the first one
is the image itself. The photometric changes are those of GraTa's code, with noise of a standard deviation up to 0.05;
`noise="strong"` takes its square root. Every call draws the same views, so that no prediction depends on earlier
batches. BatchNorm mixes 1/17 of the batch statistics into the source statistics: the published prior strength N = 16
for one image.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.adaptation.options import COUNT, HEAD, LR, NOISE, SEED, SHARE, STEPS, Option
from ttdg.adaptation.views import SQUARE_VIEWS, Noise, photometric_view
from ttdg.networks import batchnorm


class PerViewMixMode:
    """`MixMode` with separate statistics for each view, where the `views` of an image are adjacent in the batch.

    The views of an image are reshaped to one image with `views` times as many channels, so that one kernel computes the
    statistics of all views.
    """

    def __init__(self, rho: float) -> None:
        self.mix, self.views = batchnorm.MixMode(rho), 1

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise each view with its own mixed statistics."""
        k = self.views
        if k == 1 or batchnorm.has_too_few_values(x[::k]):
            return (self.mix if k == 1 else batchnorm.EVAL)(layer, x)
        mean, var = (buffer.repeat(k) for buffer in batchnorm.running_statistics(layer))
        wide = x.reshape(len(x) // k, k * x.shape[1], *x.shape[2:])
        torch.batch_norm_update_stats(wide.detach(), mean, var, self.mix.rho)
        weight, bias = (None if p is None else p.repeat(k) for p in (layer.weight, layer.bias))
        cudnn = torch.backends.cudnn.enabled
        return torch.batch_norm(wide, weight, bias, mean, var, False, 0.0, layer.eps, cudnn).view_as(x)


class Memo(GradientAdapter):
    """The adapter of MEMO.

    State: all weights, kept only until the next batch. One call: restore the source weights and the seed; `steps`
    times, mean prediction over the views and one SGD step on its entropy; forward pass over the images for the
    prediction.
    """

    def __init__(
        self, network: nn.Module, *, lr: float, steps: int, views: int, alpha: float, head: losses.Head,
        noise: Noise, seed: int,
    ) -> None:  # fmt: skip
        self.views, self.head, self.noise, self.seed = views, head, noise, seed
        self.mode = PerViewMixMode(alpha)
        batchnorm.use_if_any(network, self.mode)
        self.generator = torch.Generator(next(network.parameters()).device)
        super().__init__(
            network, partial(losses.mean_entropy, head=head), list(network.parameters()),
            lr=lr, steps=steps, predict="after", optimiser=torch.optim.SGD,
        )  # fmt: skip

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch from the source and return its logits after the update."""
        self.restart()
        self.generator.manual_seed(self.seed)
        for _ in range(self.steps):
            with torch.enable_grad():
                loss = self.objective(self._mean_prediction(images))
            self._update(loss)
        with torch.no_grad():
            return self.network(images)

    def _mean_prediction(self, images: Images) -> Logits:
        """Logits of the mean prediction over the views.

        Views of the same shape share one forward pass; a quarter turn of an image that is not square needs a second
        one.
        """
        symmetries = [SQUARE_VIEWS[i % len(SQUARE_VIEWS)] for i in range(self.views)]
        variants = self._photometric_variants(images)
        inputs = [view(variant) for view, variant in zip(symmetries, variants, strict=True)]
        members: list[Tensor] = []
        for shape in dict.fromkeys(x.shape for x in inputs):
            group = [(view, x) for view, x in zip(symmetries, inputs, strict=True) if x.shape == shape]
            outputs = self._forward_views([x for _, x in group])
            members += [view.inverse(logits) for (view, _), logits in zip(group, outputs, strict=True)]
        return losses.mixture(torch.stack(members), self.head)

    def _forward_views(self, views: list[Tensor]) -> tuple[Tensor, ...]:
        """Logits of each view, from one forward pass."""
        self.mode.views = len(views)
        try:
            logits = self.network(torch.stack(views, 1).flatten(0, 1))
        finally:
            self.mode.views = 1
        return logits.unflatten(0, (-1, len(views))).unbind(1)  # type: ignore[no-any-return]

    def _photometric_variants(self, images: Images) -> list[Tensor]:
        """The images, then `views` − 1 photometric variants of them."""
        others = self.views - 1
        if not others:
            return [images]
        variants = photometric_view(images.repeat(others, 1, 1, 1), self.generator, self.noise)
        return [images, *variants.chunk(others)]


def memo(
    network: nn.Module,
    *,
    lr: float = 1e-4,
    steps: int = 1,
    views: int = 8,
    alpha: float = 1 / 17,
    head: losses.Head = "softmax",
    noise: Noise = "released",
    seed: int = 0,
) -> Adapter:
    """Build the adapter of method `memo`."""
    return Memo(
        network, lr=lr, steps=steps, views=views, alpha=alpha, head=head, noise=noise, seed=seed,
    )  # fmt: skip


METHOD = Method(
    build=memo,
    summary="one step on the entropy of the mean prediction over views, from the source for each batch",
    adapts="all weights",
    norm="MIX(alpha)",
    memory=False,
    forwards=9,
    backwards=8,
    predict="after",
    access="source-free",
    paper="Zhang et al., NeurIPS 2022",
    origin="SGD, 1 step, N = 16 for BatchNorm as published; 8 views (published 32) and lr 1e-4 "
    "(published 5e-3 and 2.5e-4 for classification) are ours",
    published={"lr": 5e-3, "views": 32},
    options={
        "lr": LR.with_origin(
            "this project, for segmentation; the paper has 5e-3 (CIFAR) and 2.5e-4 (ImageNet)"
        ),
        "steps": STEPS.with_origin("the paper"),
        "views": Option(
            "number of views whose predictions are averaged",
            "this project: each symmetry of the square once; the paper has 32",
            COUNT,
        ),
        "alpha": Option(
            "weight of the test batch in the BatchNorm statistics",
            "the paper: 1/(N+1) with prior strength N = 16 and one image",
            SHARE,
        ),
        "head": HEAD,
        "noise": NOISE,
        "seed": SEED,
    },
    reset="episodic",
)
