"""Parts that some methods need from source time, fitted to the trained, frozen network on source images.

`EXTRAS` names them. Each fit is a pure function of its arguments, leaves the network as it is, and returns a part to be
written beside the checkpoint. Where the published method trains the network together with its part, ours does not: the
source weights stay those that every method starts from, and the method's own file says what that costs.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from scipy import ndimage
from torch import Tensor, nn

from ttdg.data import Arrays, Benchmark
from ttdg.data.transforms import IMAGENET_MEAN, IMAGENET_STD
from ttdg.errors import UserError, suggestion
from ttdg.networks import Segmenter, pyramid
from ttdg.networks.heads.consistency import ElementWise, MixStyle, pooled_features
from ttdg.networks.heads.denoiser import Denoiser, corrupt, denoising_loss
from ttdg.networks.heads.noise import LEVEL, WIDTH, Discriminator, noise_loss
from ttdg.networks.heads.shapes import GRID, ShapeHead, centred_shapes, learn_dictionary, sparse_code
from ttdg.networks.segmenter import STRIDE
from ttdg.training.batches import Pool
from ttdg.training.losses import dice_cross_entropy, one_hot
from ttdg.training.recipe import Recipe
from ttdg.types import Part

STEPS, BATCH = 1000, 8
RATE, NOISE_RATE = 1e-3, 3e-2  # of Adam, at the start; for the few weights of NC-TTT's discriminator
CALIBRATING = 8  # batches that say how source features vary
ATOMS, MOST = 32, 2000  # of a dictionary; masks it is learnt from, at most, a structure
LAYERS = 10  # of f_w

Progress = Callable[[int], None]  # steps done


@dataclass(frozen=True)
class PartFit:
    """What a fit works with. `network` is a copy of its own, in eval mode, that takes no gradient."""

    network: Segmenter
    sources: Mapping[str, Arrays]
    benchmark: Benchmark
    device: torch.device
    seed: int
    steps: int
    progress: Progress

    def batches(self) -> Iterator[tuple[Float[Tensor, "b 3 h w"], Int[Tensor, "b h w"]]]:
        """Training batches, padded to what `encode` takes; labels, too, continue at the border."""
        pool, recipe = Pool(list(self.sources.values()), self.device), Recipe(batch=BATCH, seed=self.seed)
        for step in range(1, self.steps + 1):
            images, labels = pool.batch(recipe, self.benchmark.normalisation, step, slice(0, BATCH))
            edge = -images.shape[-1] % STRIDE
            padding = (0, edge, 0, edge)
            labels = F.pad(labels[:, None].float(), padding, mode="replicate")[:, 0].long()
            yield F.pad(images, padding, mode="replicate"), labels
            self.progress(step)

    def fit(self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], rate: float = RATE) -> None:
        """Adam on a module's parameters, its rate falling to 0."""
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
        return torch.Generator(self.device).manual_seed(self.seed)

    def channels(self) -> list[int]:
        return [level.shape[1] for _, level in pyramid.level_modules(self.network)]


def fit_deynet(job: PartFit) -> Part:
    """DeY-Net's denoising decoder: L1 at blind spots, from the features of the corrupted image."""
    imagenet = job.benchmark.normalisation == "imagenet"
    mean, std = (list(x) for x in ((IMAGENET_MEAN, IMAGENET_STD) if imagenet else ((0.0,) * 3, (1.0,) * 3)))
    shift, scale = (torch.tensor(x, device=job.device).view(3, 1, 1) for x in (mean, std))
    denoiser, generator = Denoiser(job.channels(), 3), job.generator()

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        corrupted, where = corrupt(images, generator)
        with torch.no_grad():
            features = job.network.encode(corrupted)
        return denoising_loss(denoiser(features, images), images * scale + shift, where)

    job.fit(denoiser, loss)
    return denoiser.to_part(mean, std)


def fit_nc_ttt(job: PartFit) -> Part:
    """NC-TTT's discriminator of noise in the features of an early level."""
    producer, level = pyramid.level_modules(job.network)[LEVEL]
    discriminator = Discriminator(level.shape[1], min(WIDTH, level.shape[1])).to(job.device)
    generator = job.generator()
    with torch.no_grad():
        few = itertools.islice(job.batches(), CALIBRATING)
        seen = torch.cat([pyramid.encode_to(job.network, producer, images) for images, _ in few])
    discriminator.calibrate(seen)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            features = pyramid.encode_to(job.network, producer, images)
        return noise_loss(discriminator, features, generator)

    job.fit(discriminator, loss, NOISE_RATE)
    return discriminator.to_part(LEVEL)


def fit_tasd_r(job: PartFit) -> Part:
    """TASD-R's dictionary of shapes, then its head: seg loss + w‖â − a*‖₁ + ½ Dice of the prior.

    w is one over the number of coefficients. With w = 1 the head says little more than 0, the median of sparse codes,
    and its priors stay almost empty (seen in trials on the demo's sites).
    """
    structures = len(job.benchmark.labels) - 1
    head = ShapeHead(job.channels()[-1], structures + 1, structures, ATOMS).to(job.device)
    for number in range(structures):
        shapes = shapes_of(job.sources, number + 1, job.seed).to(job.device)
        if len(shapes):
            drawn = torch.Generator().manual_seed(job.seed)
            head.atoms[number] = learn_dictionary(shapes, ATOMS, drawn)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            features = job.network.encode(images)
            logits = job.network.decode(features)
            masks = one_hot(logits, labels)[:, 1:]
            true, at = targets(masks, head.atoms)
        codes, centres = head.codes(features[-1])
        prior = head.prior(codes, centres, (images.shape[-2], images.shape[-1]))
        overlap, sizes = (prior * masks).sum((2, 3)), (prior + masks).sum((2, 3))
        dice = (1 - (2 * overlap + 1) / (sizes + 1)).mean()
        supervised = dice_cross_entropy(head.corrected(logits, prior), labels)
        return supervised + (codes - true).abs().mean() + (centres - at).abs().mean() + 0.5 * dice

    job.fit(head, loss)
    return head.to_part("softmax")


def fit_itta(job: PartFit) -> Part:
    """ITTA's f_w: the consistency's gradient on the encoder, standardised, is drawn to the supervised one's."""
    made = [producer for producer, _ in pyramid.level_modules(job.network)]
    encoder = [p.requires_grad_(True) for p in pyramid.parameters_before(job.network, made[-1])]
    measure, styles = ElementWise((job.channels()[-1],), LAYERS), MixStyle(made, job.seed)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        features = styles.twice(job.network, images)
        logits = job.network.decode(features)
        z, other = pooled_features(features)
        supervised = dice_cross_entropy(logits, labels.repeat(2, 1, 1))
        wanted = torch.autograd.grad(supervised, encoder, retain_graph=True)
        consistency = measure(other - z).square().mean()
        return gradient_alignment_loss(torch.autograd.grad(consistency, encoder, create_graph=True), wanted)

    job.fit(measure, loss)
    return measure.to_part()


def gradient_alignment_loss(
    consistency: tuple[Tensor, ...], supervised: tuple[Tensor, ...]
) -> Float[Tensor, ""]:
    """0.1·mean (norm(g_reg) − norm(g_cls))², norm being standardisation over all parameters: 0 where one is a positive
    multiple of the other."""
    reg, cls = (torch.cat([g.flatten() for g in gradients]) for gradients in (consistency, supervised))
    reg, cls = ((g - g.mean()) / (g.std() + 1e-12) for g in (reg, cls))
    return 0.1 * (reg - cls.detach()).square().mean()


def shapes_of(sources: Mapping[str, Arrays], label: int, seed: int) -> Float[Tensor, "m p"]:
    """Shapes of a structure in source masks, drawn evenly from all sites: the largest piece of each."""
    masks = [site.masks for site in sources.values() if site.masks is not None]
    site = torch.cat([torch.full((len(m),), s) for s, m in enumerate(masks)])
    row = torch.cat([torch.arange(len(m)) for m in masks])
    order = torch.randperm(len(row), generator=torch.Generator().manual_seed(seed))[:MOST]
    pieces = []
    for s, r in zip(site[order].tolist(), row[order].tolist(), strict=True):
        mask = (masks[s][r] == label).float()[None, None]
        if mask.any():
            pieces.append(largest_component(mask))
    return centred_shapes(torch.cat(pieces))[0].flatten(1) if pieces else torch.zeros(0, GRID * GRID)


def targets(
    masks: Float[Tensor, "b n h w"], atoms: Float[Tensor, "n k p"]
) -> tuple[Float[Tensor, "b n k"], Float[Tensor, "b n 2"]]:
    """What TASD-R's head shall say of these masks: coefficients and centres of the largest piece of each."""
    shapes, centres = centred_shapes(largest_component(masks))
    codes = [sparse_code(shapes[:, number].flatten(1), atoms[number]) for number in range(len(atoms))]
    return torch.stack(codes, 1), centres


def largest_component(masks: Float[Tensor, "b n h w"]) -> Float[Tensor, "b n g g"]:
    """Of each mask its largest piece, on the grid of shapes."""
    coarse = F.interpolate(masks, (GRID, GRID), mode="area")
    kept = [_largest(mask) for mask in coarse.flatten(0, 1).cpu().numpy() > 0.25]
    return coarse * torch.from_numpy(np.stack(kept)).view(coarse.shape).to(coarse.device)


def _largest(mask: Bool[np.ndarray, "g g"]) -> Bool[np.ndarray, "g g"]:
    pieces, count = ndimage.label(mask)
    if count < 2:
        return np.ones_like(mask)  # what little lies outside it may stay
    kept: Bool[np.ndarray, "g g"] = pieces == np.bincount(pieces.ravel())[1:].argmax() + 1
    return kept


EXTRAS: dict[str, Callable[[PartFit], Part]] = {
    "deynet": fit_deynet,
    "nc-ttt": fit_nc_ttt,
    "tasd-r": fit_tasd_r,
    "itta": fit_itta,
}


def fit_part(
    name: str,
    network: Segmenter,
    sources: Mapping[str, Arrays],
    benchmark: Benchmark,
    device: torch.device,
    *,
    seed: int = 0,
    steps: int = STEPS,
    progress: Progress = lambda done: None,
) -> Part:
    """The part of that name for this network, from source images alone."""
    if name not in EXTRAS:
        raise UserError(f"no part {name!r} is fitted to a trained network{suggestion(name, EXTRAS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of the parts' first weights
        frozen: Any = copy.deepcopy(network).to(device).eval().requires_grad_(False)
        part = EXTRAS[name](PartFit(frozen, sources, benchmark, device, seed, steps, progress))
    return replace(part, fitted={"steps": steps, "seed": seed})
