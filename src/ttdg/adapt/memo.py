"""MEMO: one step on the entropy of the prediction averaged over views, anew for each batch.

Zhang et al., MEMO: Test Time Robustness via Adaptation and Augmentation, NeurIPS 2022.

Decisions: the marginal is taken pixel by pixel over views that are turned back (an average over pixels too would
only ask for a sure share of foreground); views are the symmetries of the square under other lights, the first being
the image itself; BatchNorm mixes 1/17 of the batch's statistics into the source's, the published N = 16 at one image.
"""

import torch
from torch import Tensor, nn

from ttdg.adapt import batchnorm, entropy, symmetries
from ttdg.adapt.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.errors import UserError


class Memo(GradientAdapter):
    def __init__(
        self, network: nn.Module, *, lr: float, steps: int, views: int, head: entropy.Head, seed: int
    ) -> None:
        self.views, self.head, self.seed = views, head, seed
        self.generator = torch.Generator(next(network.parameters()).device)

        def objective(logits: Logits) -> Tensor:
            return entropy.entropy(logits, head).mean()

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
        """Logits of the mean prediction over views."""
        views = [symmetries.SQUARE[i % len(symmetries.SQUARE)] for i in range(self.views)]
        members = [
            view.back(self.network(view(seen)))
            for view, seen in zip(views, self._lights(images), strict=True)
        ]
        return entropy.mixture(torch.stack(members), self.head)

    def _lights(self, images: Images) -> list[Tensor]:
        """The images themselves, then under other lights, all drawn at once."""
        others = self.views - 1
        if not others:
            return [images]
        return [images, *symmetries.recoloured(images.repeat(others, 1, 1, 1), self.generator).chunk(others)]


def memo(
    network: nn.Module,
    *,
    lr: float = 1e-4,
    steps: int = 1,
    views: int = 8,
    alpha: float = 1 / 17,
    head: entropy.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    if views < 1:
        raise UserError(f"memo averages over at least one view, not {views}")
    if batchnorm.present(network):
        batchnorm.use(network, batchnorm.Mix(alpha))
    return Memo(network, lr=lr, steps=steps, views=views, head=head, seed=seed)


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
