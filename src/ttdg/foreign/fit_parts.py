"""Fitting the morphology prior and the judge to any segmentation network, from labelled source images."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ttdg.adaptation.foreign_network import OUTPUT, ForeignNetwork, output_part
from ttdg.adaptation.network_output import Activation, OutputForm, read_as
from ttdg.adaptation.universe.fit import count_fit_rounds, fit_judges
from ttdg.checkpoints import content_hash, save_part
from ttdg.data import Benchmark, NetworkInput, Sources, normalise
from ttdg.errors import UserError
from ttdg.foreign.source_images import source_images
from ttdg.networks.taps import choose_taps
from ttdg.training.prior_fit import STEPS, fit_prior
from ttdg.types import Part

Report = Callable[[int, int], None]  # receives the number of finished rounds and of all rounds


def fit(
    network: nn.Module,
    images: Float[Tensor, "n c *hw"],
    masks: Shaped[Tensor, "m *_"],
    *,
    taps: Sequence[str] | None = None,
    output: str | int | None = None,
    activation: Activation | None = None,
    steps: int = STEPS,
    seed: int = 0,
    out: str | Path | None = None,
    progress: Report = lambda done, total: None,
    **settings: Any,
) -> dict[str, Part]:
    """Fit what the methods `judge`, `universe`, `universe-choice` and `universe-gradient` need besides the network.

    Use images that the network was not trained on, if there are enough: the judge learns on every fifth image what
    accuracy to expect. The network is not changed.

    Args:
        network: maps images to logits; it needs neither `encode` and `decode` nor BatchNorm.
        images: labelled source images, normalised as the network expects them, in 1 or 3 channels.
        masks: label maps (n h w) with background 0; or for a sigmoid head 0 and 1 for each channel (n k h w).
        taps: names of the modules whose output maps are features, as in `network.named_modules()`. By default two deep
            maps and one of the decoder are chosen (`ttdg.networks.taps.choose_taps`).
        output: which output of the network holds the logits: the key of a dict, or the position in a tuple.
        activation: "softmax" if the labels exclude each other, "sigmoid" if the channels are independent. It must be
            given for a network with two or more output channels.
        steps: training steps of the prior.
        seed: seed of the fits.
        out: folder to which the parts are also saved; `ttdg.adapt` accepts it as `parts`.
        progress: called with the number of finished rounds and of all rounds.
        **settings: keywords of `ttdg.adaptation.universe.fit.fit_judges`, such as `hospitals` or `folder_steps`.

    Returns:
        The parts by name, for `ttdg.adapt(network, method, parts=…)`.
    """
    if images.ndim != 4:
        raise UserError(
            f"parts are fitted on images (images, channels, height, width), not on a tensor of shape "
            f"{tuple(images.shape)}; give the slices of volumes as images, and a network of images"
        )
    source = _source(network)
    form = _form(source, images, output, activation)
    channels = form.logits(_first(source, images)).shape[1]
    given = source_images(images, masks, form, channels)
    read_as(source, given.form, labels=given.form.activation == "sigmoid")
    sites = Sources({"source": given.train}, {"source": given.held_out}, {})
    parts = _fit_parts(source, sites, given.benchmark, given.form, taps, steps, seed, progress, settings)
    if out is not None:
        save_parts(Path(out), parts, network)
    return parts


def fit_to_sources(
    network: nn.Module,
    sources: Sources,
    benchmark: Benchmark,
    *,
    channels: int = 3,
    taps: Sequence[str] | None = None,
    output: str | int | None = None,
    activation: Activation | None = None,
    steps: int = STEPS,
    seed: int = 0,
    progress: Report = lambda done, total: None,
    **settings: Any,
) -> dict[str, Part]:
    """Do the same as `fit`, with the source sites of a benchmark.

    The network receives images of the size and normalisation of the benchmark, in 3 channels, or in 1: their mean. The
    output channels are its labels (softmax), or its regions (sigmoid).
    """
    if benchmark.normalisation == "imagenet" and channels == 1:
        raise UserError(
            "the normalisation 'imagenet' is one of three channels; use a benchmark with another one"
        )
    assert not isinstance(benchmark.normalisation, NetworkInput)
    benchmark = replace(benchmark, normalisation=NetworkInput(channels, benchmark.normalisation))
    source, first = _source(network), next(iter(sources.train.values())).images[:1]
    form = _form(source, normalise(first.float() / 255, benchmark.normalisation), output, activation)
    found = form.logits(_first(source, normalise(first.float() / 255, benchmark.normalisation))).shape[1]
    expected = benchmark.regions if form.activation == "sigmoid" else benchmark.labels
    if found != len(expected):
        raise UserError(
            f"the network has {found} output channels, but the benchmark has {len(expected)}: {', '.join(expected)}; "
            "name the benchmark that the network was trained for, or the other activation"
        )
    if form.activation == "sigmoid":
        regions = benchmark.regions.values()
        sets = (
            tuple(k for k, of in enumerate(regions) if label in of) for label in range(len(benchmark.labels))
        )
        form = replace(form, label_sets=tuple(sets))
    read_as(source, form, labels=form.activation == "sigmoid")
    return _fit_parts(source, sources, benchmark, form, taps, steps, seed, progress, settings)


def _fit_parts(
    network: nn.Module, sources: Sources, benchmark: Benchmark, form: OutputForm, taps: Sequence[str] | None,
    steps: int, seed: int, progress: Report, settings: Mapping[str, Any],
) -> dict[str, Part]:  # fmt: skip
    """Fit the prior, then the judge, to a network that returns logits of labels; both say how they were fitted."""
    if taps is None:
        first = next(iter(sources.train.values())).images[:1].float() / 255
        taps = choose_taps(network, normalise(first, benchmark.normalisation).to(next(network.parameters())))
    total = steps + count_fit_rounds(sources.held_out, settings.get("draws"), settings.get("hospitals", 8))
    prior = fit_prior(
        network, sources.train, benchmark, steps=steps, seed=seed, levels=tuple(taps),
        progress=lambda done: progress(done, total),
    )  # fmt: skip
    judge = fit_judges(
        network, prior, sources.train, sources.held_out, benchmark, seed=seed,
        progress=lambda done: progress(steps + done, total), **settings,
    )  # fmt: skip
    return {
        "prior": replace(prior.to_part(), fitted={"steps": steps, "seed": seed}),
        "judge": replace(judge, fitted={**settings, "seed": seed}),
        OUTPUT: output_part(form),
    }


def _source(network: nn.Module) -> nn.Module:
    """A copy in float32 and eval mode."""
    return copy.deepcopy(network).float().eval()


def save_parts(folder: Path, parts: Mapping[str, Part], network: nn.Module) -> None:
    """Write parts to a folder, with the hash of the weights that they were fitted to."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = content_hash(network.state_dict())
    for name, part in parts.items():
        save_part(folder, name, part, weights)


def _form(
    network: nn.Module, images: Tensor, output: str | int | None, activation: Activation | None
) -> OutputForm:
    """The form of the output; raises `UserError` if the activation is not known."""
    form = ForeignNetwork.of(network, {}, output, activation).form
    logits = form.logits(_first(network, images))
    if logits.ndim != 4 or logits.shape[2:] != images.shape[2:]:
        raise UserError(
            f"for images of shape {tuple(images.shape[1:])} the network returns logits of shape "
            f"{tuple(logits.shape[1:])}; logits must have the height and width of the images; let the "
            "network enlarge them"
        )
    if form.activation is None and logits.shape[1] == 1:
        return replace(form, activation="sigmoid")
    if form.activation is None:
        raise UserError(
            f"the network has {logits.shape[1]} output channels, and nothing says whether they are labels that exclude "
            'each other or independent structures; give activation="softmax" or activation="sigmoid"'
        )
    if form.activation == "softmax" and logits.shape[1] == 1:
        raise UserError(
            'this network has one output channel, for which softmax is always 1; use activation="sigmoid"'
        )
    return form


@torch.no_grad()
def _first(network: nn.Module, images: Tensor) -> Any:
    return network(images[:1].to(next(network.parameters())))
