"""The training loop: it resumes after an interruption and ends by writing a checkpoint folder."""

import os
import shutil
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ttdg.checkpoints import ModelCard, save
from ttdg.data import Arrays, Benchmark, normalise
from ttdg.errors import TtdgWarning, UserError, suggestion
from ttdg.networks import NETWORKS, EncoderNetwork, NetworkSpec, cuda_graph, level_channels, load_encoder
from ttdg.networks.segmenter import pad_to_stride
from ttdg.networks.strides import better_strides, enlarged
from ttdg.prior import LiteralPrior, MorphologyPrior, literal_prior_for, prior_for
from ttdg.training.averaging import WeightAverage
from ttdg.training.batches import Pool
from ttdg.training.learner import Learner
from ttdg.training.recipe import Recipe
from ttdg.training.resume import State
from ttdg.training.sync import synchronise
from ttdg.training.update import Optimisers, Update
from ttdg.training.validate import validate

PRIOR_RATE = (
    1e-3  # learning rate of the repaired prior, which AdamW trains whatever the network's optimiser is
)
COMPARED = 24  # images, over all sites, on which the strides of the encoder weights are compared
REPORT_EVERY = 20  # steps between two progress events; reading the loss makes the host wait for the device


@dataclass(frozen=True)
class Progress:
    """A progress event of a training run, for a progress bar or a log."""

    step: int
    steps: int
    loss: float  # mean since the last event
    validation: Mapping[str, float]  # latest Dice on held-out images by region, or accuracy


def train(
    sources: Mapping[str, Arrays],
    held_out: Mapping[str, Arrays],
    benchmark: Benchmark,
    recipe: Recipe,
    out: Path,
    *,
    fabric: Any,
    provenance: Mapping[str, Mapping[str, Any]],
    on_progress: Callable[[Progress], None] = lambda event: None,
    every: int = 500,
    seconds: float = 60.0,
) -> ModelCard:
    """Train on `sources`, validate on `held_out` every `every` steps, and write the checkpoint folder `out`.

    The checkpoint holds the last weights, or their moving average: validation selects nothing. The state is saved
    every `every` steps, and in between once `seconds` have passed since the last save; an interrupted run continues
    from there.
    """
    recipe.check_task(benchmark.task)
    torch.manual_seed(recipe.seed)
    network = build_network(recipe, len(benchmark.labels), benchmark.task)
    if recipe.encoder_weights is not None and fabric.is_global_zero:
        warn_of_strides(network, sources.values(), benchmark)
    prior = build_prior(recipe, network, benchmark) if recipe.universe else None
    learner = Learner(network, prior, recipe.loss, recipe.universe, recipe.mixstyle > 0)
    update = set_up(fabric, learner, recipe)
    result = learner if update.average is None else update.average.learner
    state = State(
        out,
        {"recipe": recipe.to_dict(), "sources": {site: dict(v) for site, v in provenance.items()}},
        seconds,
    )
    start = state.resume(learner, update.optimisers, update.average)
    pool, part = Pool(list(sources.values()), fabric.device), _batch_part(recipe, fabric)
    scores: Mapping[str, float] = {}
    losses: list[Tensor] = []
    for step in range(start + 1, recipe.steps + 1):
        images, masks, *styles = pool.batch(recipe, benchmark.normalisation, step, part)
        losses.append(update(images, masks, recipe.rate(step - 1) / recipe.lr, *styles))
        last = step == recipe.steps
        if step % every == 0 or last:
            scores = validate(result.network, held_out, benchmark, fabric.device)
        if fabric.is_global_zero and not last and (step % every == 0 or state.due()):
            state.save(learner, update.optimisers, step, update.average)
        if step % REPORT_EVERY == 0 or step % every == 0 or last:
            recent = torch.stack(losses)
            if int(recent.isfinite().sum()) * 2 < len(recent):
                raise _diverged(step, recipe, state)
            on_progress(Progress(step, recipe.steps, recent.mean().item(), scores))
            losses.clear()
    card = ModelCard(network.spec, benchmark, provenance, recipe.to_dict(), scores)
    if fabric.is_global_zero:
        parts = {} if result.prior is None else {"prior": result.prior.to_part()}
        card = save(out, result.network, card, parts)
        shutil.rmtree(state.folder, ignore_errors=True)  # the checkpoint replaces the saved state
    fabric.barrier()
    return card


def _diverged(step: int, recipe: Recipe, state: State) -> UserError:
    """The error of a training whose losses are mostly not finite; its saved state is of no use and is removed."""
    shutil.rmtree(state.folder, ignore_errors=True)
    return UserError(
        f"the training diverged: up to step {step}, most losses are infinite or NaN; choose a learning rate below "
        f"{recipe.lr:g}"
    )


def build_network(recipe: Recipe, labels: int, task: str = "segmentation") -> EncoderNetwork:
    """Build the network of a recipe for `labels` classes, with the recipe's encoder weights if it names any."""
    network = NETWORKS[task](NetworkSpec(labels, recipe.encoder, strides=recipe.strides))
    if recipe.encoder_weights is not None:
        load_encoder(network, Path(recipe.encoder_weights))
    return network


def warn_of_strides(network: EncoderNetwork, sources: Collection[Arrays], benchmark: Benchmark) -> None:
    """Warn if the encoder is a ResNet-50 whose weights fit the other strides better on images of all sites.

    The images are taken at equal distances from each site: neighbours can be of one class or one video.
    """
    spec = network.spec
    if spec.encoder != "resnet50":
        return
    each = -(-COMPARED // len(sources))
    chosen = torch.cat([site.images[:: -(-len(site.images) // each)] for site in sources])
    images = normalise(chosen.float() / 255, benchmark.normalisation)
    if other := better_strides(network.image_encoder, pad_to_stride(enlarged(images)), spec.strides):
        warnings.warn(
            f"the encoder weights fit strides {other} better than {spec.strides}, by the BatchNorm statistics of "
            f"{len(images)} images; train with --strides {other} (`strides: {other}` in a recipe)",
            TtdgWarning,
            stacklevel=2,
        )


def build_prior(
    recipe: Recipe, network: EncoderNetwork, benchmark: Benchmark
) -> MorphologyPrior | LiteralPrior:
    """Build the untrained prior of a recipe.

    The literal universe of a classification has one label: its nodes are spread over the whole image, and d is the
    number of points.
    """
    widths, labels, settings = level_channels(network), len(benchmark.labels), recipe.prior_settings()
    if recipe.universe_loss == "literal":
        return literal_prior_for(widths, 1 if benchmark.task == "classification" else labels, **settings)
    return prior_for(widths, labels, **settings)


def make_fabric(recipe: Recipe, accelerator: str = "auto", devices: int = 1) -> Any:
    """Create and launch the Lightning Fabric of a recipe; under `torchrun`, WORLD_SIZE overrides `devices`."""
    from lightning_fabric import Fabric

    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if accelerator not in ("auto", "cpu", "cuda"):
        raise UserError(
            f"unknown accelerator {accelerator!r}{suggestion(accelerator, ('auto', 'cpu', 'cuda'))}"
        )
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise UserError("the accelerator 'cuda' is not available: PyTorch finds no GPU; use 'cpu' or 'auto'")
    if devices < 1:
        raise UserError(f"the number of processes must be 1 or more, not {devices}")
    processes = int(os.environ.get("WORLD_SIZE", devices))
    cuda = accelerator == "cuda" or (accelerator == "auto" and torch.cuda.is_available())
    bf16 = recipe.precision == "bf16" or (recipe.precision == "auto" and cuda)
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        precision="bf16-mixed" if bf16 else "32-true",
    )
    fabric.launch()
    return fabric


def set_up(fabric: Any, learner: Learner, recipe: Recipe) -> Update:
    """Move the learner and its optimisers to the device and return the training step.

    Several processes share the step by distributed data parallelism; one process on a GPU records it as a CUDA graph.
    HiPPI of the literal universe loss ends by a test on the host, so its step is not recorded.
    """
    cuda = fabric.device.type == "cuda"
    literal = recipe.universe_loss == "literal" and recipe.universe > 0
    recorded = (
        cuda and fabric.world_size == 1 and not (recipe.deterministic or literal) and cuda_graph.enabled()
    )
    if fabric.world_size > 1:
        synchronise(learner.network, cuda)
    if cuda:
        learner.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimisers = [_optimiser(recipe, learner.network.parameters(), cuda, recorded)]
    if learner.prior is not None:
        trained = [
            p for name, p in learner.prior.named_parameters() if not name.startswith(("edges", "affinity"))
        ]
        optimisers.append(
            _optimiser(recipe, trained, cuda, recorded, decay=False)
            if literal
            else torch.optim.AdamW(trained, PRIOR_RATE, weight_decay=0.0, fused=cuda, capturable=recorded)
        )
    wrapped, *ready = fabric.setup(learner, *optimisers)
    average = WeightAverage(learner, recipe.average) if recipe.average else None
    return Update(fabric, wrapped, Optimisers(ready, recorded), recorded, average)


def _optimiser(
    recipe: Recipe, parameters: Iterable[nn.Parameter], fused: bool, recorded: bool, decay: bool = True
) -> torch.optim.Optimizer:
    """The recipe's optimiser; in the paper it also trains 𝒰, whose decay is α of Eq. 9."""
    rate = recipe.weight_decay if decay else 0.0
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(parameters, recipe.lr, recipe.momentum, weight_decay=rate, fused=fused)
    return torch.optim.AdamW(parameters, recipe.lr, weight_decay=rate, fused=fused, capturable=recorded)


def _batch_part(recipe: Recipe, fabric: Any) -> slice:
    """Rows of the global batch that this process trains on."""
    if recipe.batch % fabric.world_size:
        raise UserError(
            f"batch {recipe.batch} does not divide over {fabric.world_size} processes; "
            "choose a multiple of the number of processes"
        )
    share = recipe.batch // fabric.world_size
    return slice(fabric.global_rank * share, (fabric.global_rank + 1) * share)
