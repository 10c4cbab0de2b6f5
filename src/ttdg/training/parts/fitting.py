"""What the fits of all parts share: the frozen network, padded training batches and the optimisation loop."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ttdg.data import Arrays, Benchmark
from ttdg.networks import EncoderNetwork, pyramid
from ttdg.networks.segmenter import STRIDE
from ttdg.training.batches import Pool
from ttdg.training.recipe import FITTING_AUGMENTATION, Recipe

STEPS, BATCH = 1000, 8
RATE = 1e-3  # initial learning rate of Adam

Report = Callable[[int], None]  # called with the number of steps done


@dataclass(frozen=True)
class PartFit:
    """The arguments of a fit. `network` is a private copy in eval mode, without gradients."""

    network: EncoderNetwork
    sources: Mapping[str, Arrays]
    benchmark: Benchmark
    device: torch.device
    seed: int
    steps: int
    progress: Report

    def batches(self) -> Iterator[tuple[Float[Tensor, "b 3 h w"], Int[Tensor, "b h w"]]]:
        """Yield `steps` training batches, with the border repeated to a multiple of the network's stride."""
        pool = Pool(list(self.sources.values()), self.device)
        recipe = Recipe(batch=BATCH, augmentation=FITTING_AUGMENTATION, seed=self.seed)
        for step in range(1, self.steps + 1):
            images, labels = pool.batch(recipe, self.benchmark.normalisation, step, slice(0, BATCH))
            edge = -images.shape[-1] % STRIDE
            padding = (0, edge, 0, edge)
            labels = F.pad(labels[:, None].float(), padding, mode="replicate")[:, 0].long()
            yield F.pad(images, padding, mode="replicate"), labels
            self.progress(step)

    def fit(self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], rate: float = RATE) -> None:
        """Minimise `loss(images, labels)` over the module's parameters by Adam; the learning rate decays to 0."""
        module.to(self.device).train()
        optimiser = torch.optim.Adam(module.parameters(), rate)
        schedule = torch.optim.lr_scheduler.PolynomialLR(optimiser, self.steps, power=0.9)
        for images, labels in self.batches():
            loss(images, labels).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
        module.eval()

    def generator(self) -> torch.Generator:
        """Return a new random generator on the device, seeded with `seed`."""
        return torch.Generator(self.device).manual_seed(self.seed)

    def channels(self) -> list[int]:
        """Return the number of channels at each level of the encoder's pyramid."""
        return [level.shape[1] for _, level in pyramid.level_modules(self.network)]
