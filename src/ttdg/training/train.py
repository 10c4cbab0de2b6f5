"""Source training: one linear loop that resumes after a kill and ends in a checkpoint folder."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ttdg.checkpoints import ModelCard, save
from ttdg.data import Arrays, Benchmark
from ttdg.errors import UserError
from ttdg.networks import NetworkSpec, Segmenter, cuda_graph, load_encoder
from ttdg.prior import prior_for
from ttdg.training.batches import Pool
from ttdg.training.learner import Learner
from ttdg.training.recipe import Recipe
from ttdg.training.resume import State
from ttdg.training.sync import synchronise
from ttdg.training.update import Optimisers, Update
from ttdg.training.validate import validate

PRIOR_RATE = 1e-3  # AdamW, whatever trains the network
PULSE = 20  # steps between two events: reading the loss makes the host wait for the device


@dataclass(frozen=True)
class Progress:
    """One event of a training run, for a progress bar or a log."""

    step: int
    steps: int
    loss: float
    validation: Mapping[str, float]


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
    """Train on `sources`, score on `held_out` every `every` steps, and write the checkpoint folder `out`.

    The weights kept are the last: nothing is selected. A killed run goes on from its last saved state; it is saved
    every `every` steps, and between them where `seconds` have passed since.
    """
    torch.manual_seed(recipe.seed)
    network = build(recipe, len(benchmark.labels))
    prior = prior_for(network, len(benchmark.labels), **recipe.of_prior()) if recipe.universe else None
    learner = Learner(network, prior, recipe.loss, recipe.universe)
    update = _set_up(fabric, learner, recipe)
    state = State(
        out,
        {"recipe": recipe.to_dict(), "sources": {site: dict(v) for site, v in provenance.items()}},
        seconds,
    )
    start = state.resume(learner, update.optimisers)
    pool, part = Pool(list(sources.values()), fabric.device), _part(recipe, fabric)
    scores: Mapping[str, float] = {}
    losses: list[Tensor] = []
    for step in range(start + 1, recipe.steps + 1):
        images, labels = pool.batch(recipe, benchmark.normalisation, step, part)
        losses.append(update(images, labels, recipe.rate(step - 1) / recipe.lr))
        last = step == recipe.steps
        if step % every == 0 or last:
            scores = validate(network, held_out, benchmark, fabric.device)
        if fabric.is_global_zero and not last and (step % every == 0 or state.due()):
            state.save(learner, update.optimisers, step)
        if step % PULSE == 0 or step % every == 0 or last:
            on_progress(Progress(step, recipe.steps, torch.stack(losses).mean().item(), scores))
            losses.clear()
    card = ModelCard(network.spec, benchmark, provenance, recipe.to_dict(), scores)
    if fabric.is_global_zero:
        card = save(out, network, card, {} if prior is None else {"prior": prior.to_part()})
        state.clear()
    fabric.barrier()
    return card


def build(recipe: Recipe, labels: int) -> Segmenter:
    network = Segmenter(NetworkSpec(labels, recipe.encoder, strides=recipe.strides))
    if recipe.encoder_weights is not None:
        load_encoder(network, Path(recipe.encoder_weights))
    return network


def make_fabric(recipe: Recipe, accelerator: str = "auto", devices: int = 1) -> Any:
    """Lightning Fabric for this recipe, launched; `torchrun` is recognised by its environment."""
    from lightning_fabric import Fabric

    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
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


def _set_up(fabric: Any, learner: Learner, recipe: Recipe) -> Update:
    """The learner and its optimisers on the device, wrapped for several processes where there are several; for one
    process on a GPU so that their step can be recorded."""
    cuda = fabric.device.type == "cuda"
    recorded = cuda and fabric.world_size == 1 and not recipe.deterministic and cuda_graph.enabled()
    if fabric.world_size > 1:
        synchronise(learner.network, cuda)
    if cuda:
        learner.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimisers = [_optimiser(recipe, learner.network, cuda, recorded)]
    if learner.prior is not None:
        used = [
            p for name, p in learner.prior.named_parameters() if not name.startswith(("edges", "affinity"))
        ]
        optimisers.append(
            torch.optim.AdamW(used, PRIOR_RATE, weight_decay=0.0, fused=cuda, capturable=recorded)
        )
    wrapped, *ready = fabric.setup(learner, *optimisers)
    return Update(fabric, wrapped, Optimisers(ready, recorded), recorded)


def _optimiser(recipe: Recipe, network: nn.Module, fused: bool, recorded: bool) -> torch.optim.Optimizer:
    parameters, decay = network.parameters(), recipe.weight_decay
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(parameters, recipe.lr, recipe.momentum, weight_decay=decay, fused=fused)
    return torch.optim.AdamW(parameters, recipe.lr, weight_decay=decay, fused=fused, capturable=recorded)


def _part(recipe: Recipe, fabric: Any) -> slice:
    """This process's share of the global batch."""
    if recipe.batch % fabric.world_size:
        raise UserError(
            f"batch {recipe.batch} does not divide over {fabric.world_size} processes; change --batch"
        )
    share = recipe.batch // fabric.world_size
    return slice(fabric.global_rank * share, (fabric.global_rank + 1) * share)
