"""Fitting the morphology prior and the judge to any segmentation network, from labelled source images."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ttdg.adaptation.inference_mode import normal_mode
from ttdg.adaptation.judge.readings import READING_SETS
from ttdg.adaptation.own_network.first_pass import check_tensor
from ttdg.adaptation.own_network.foreign import (
    OUTPUT,
    ForeignNetwork,
    copied,
    output_part,
    unwrapped,
    weights_hash,
)
from ttdg.adaptation.own_network.output import Activation, read_as
from ttdg.adaptation.random_state import kept_random_state
from ttdg.adaptation.universe.fit import count_fit_rounds, fit_judges
from ttdg.arguments import checked_keyword
from ttdg.checkpoints import save_part
from ttdg.data import Benchmark, NetworkInput, Sources, normalise
from ttdg.errors import UserError, suggestion
from ttdg.foreign.output_form import LOOKED_AT, completed_form
from ttdg.foreign.source_accuracy import warn_of_poor_answers
from ttdg.foreign.source_images import check_images, check_labels_occur, source_images
from ttdg.networks.taps import choose_taps
from ttdg.training.prior_fit import STEPS, fit_prior
from ttdg.types import Part

Report = Callable[[int, int], None]  # receives the number of finished rounds and of all rounds


@torch.inference_mode(False)  # also where the caller switched gradients off
@normal_mode()
@kept_random_state()
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
        masks: label maps (n h w) with background 0; or for a sigmoid head 0 and 1 for each channel (n k h w). Every
            label and every channel occurs in some mask. With one channel, label maps of 0 and 1 are accepted too.
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
        The parts by name, for `ttdg.adapt(network, method, parts=…)`. They hold the hash of the weights of the network,
        and `ttdg.adapt` refuses them for other weights.
    """
    numbers = _checked(fit, {"steps": steps, "seed": seed, **settings})
    taps = _names(taps)
    check_tensor(images, "images")
    check_tensor(masks, "masks")
    check_images(images, masks)
    if out is not None and Path(out).is_file():
        raise UserError(f"{out} is a file, but parts are saved to a folder; name another path")
    network = unwrapped(network)
    source = _source(network)
    known = ForeignNetwork.of(network, {}, output, activation).form
    form, channels = completed_form(source, images, known)
    given = source_images(images, masks, form, channels)
    read_as(source, given.form, labels=given.form.activation == "sigmoid")
    sites = Sources({"source": given.train}, {"source": given.held_out}, {})
    described = output_part(given.form, weights_hash(network))
    parts = _fit_parts(source, sites, given.benchmark, described, taps, progress, **numbers)
    if out is not None:
        save_parts(Path(out), parts, network)
    return parts


@torch.inference_mode(False)  # also where the caller switched gradients off
@normal_mode()
@kept_random_state()
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
    numbers = _checked(fit_to_sources, {"steps": steps, "seed": seed, **settings})
    taps = _names(taps)
    if benchmark.normalisation == "imagenet" and channels == 1:
        raise UserError(
            "the normalisation 'imagenet' is one of three channels; use a benchmark with another one"
        )
    assert not isinstance(benchmark.normalisation, NetworkInput)
    benchmark = replace(benchmark, normalisation=NetworkInput(channels, benchmark.normalisation))
    check_labels_occur(sources, benchmark.labels)
    network = unwrapped(network)
    source, first = _source(network), next(iter(sources.train.values())).images[:LOOKED_AT]
    images = normalise(first.float() / 255, benchmark.normalisation)
    other = 1 if channels == 3 else 3
    remedy = (
        f"try --channels {other} (in Python channels={other}), or a benchmark with images of another size"
    )
    known = ForeignNetwork.of(network, {}, output, activation).form
    form, found = completed_form(source, images, known, remedy)
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
    described = output_part(form, weights_hash(network))
    return _fit_parts(source, sources, benchmark, described, taps, progress, **numbers)


def _fit_parts(
    network: nn.Module, sources: Sources, benchmark: Benchmark, described: Part, taps: tuple[str, ...] | None,
    progress: Report, *, steps: int, seed: int, **settings: Any,
) -> dict[str, Part]:  # fmt: skip
    """Fit the prior, then the judge, to a network that returns logits of labels; both say how they were fitted.

    `described` is the part that holds the form of the output.
    """
    warn_of_poor_answers(network, sources.held_out.values(), benchmark)
    if taps is None:
        first = next(iter(sources.train.values())).images[:1].float() / 255
        taps = choose_taps(network, normalise(first, benchmark.normalisation).to(next(network.parameters())))
    total = steps + count_fit_rounds(sources.held_out, settings.get("draws"), settings.get("hospitals", 8))
    prior = fit_prior(
        network, sources.train, benchmark, steps=steps, seed=seed, levels=taps,
        progress=lambda done: progress(done, total),
    )  # fmt: skip
    judge = fit_judges(
        network, prior, sources.train, sources.held_out, benchmark, seed=seed,
        progress=lambda done: progress(steps + done, total), **settings,
    )  # fmt: skip
    return {
        "prior": replace(prior.to_part(), fitted={"steps": steps, "seed": seed}),
        "judge": replace(judge, fitted={**settings, "seed": seed}),
        OUTPUT: described,
    }


def _checked(fit_function: Callable[..., Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of keywords of this function or of `fit_judges`; wrong ones raise before anything is fitted."""
    known = {
        parameter.name: parameter
        for function in (fit_judges, fit_function)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "keep"
    }
    for name in numbers:
        if name not in known:
            raise UserError(f"ttdg.{fit_function.__name__} has no argument {name!r}{suggestion(name, known)}")
    choices = {"readings": READING_SETS}
    return {
        name: checked_keyword(known[name], value, name, choices=choices.get(name, ()))
        for name, value in numbers.items()
    }


def _names(taps: Any) -> tuple[str, ...] | None:
    """Return names of taps, or None if they are to be chosen."""
    if taps is None or isinstance(taps, str):
        return taps if taps is None else (taps,)
    if isinstance(taps, Iterable):
        names = tuple(taps)
        if names and all(isinstance(name, str) for name in names):
            return names
    raise UserError(
        f"taps are names of modules of the network, at least one, not {taps!r}; name them as "
        "`network.named_modules()` does, or leave `taps` out, and they are chosen"
    )


def _source(network: nn.Module) -> nn.Module:
    """A copy in float32 and eval mode."""
    if not isinstance(network, nn.Module):
        raise UserError(
            f"parts are fitted to a torch.nn.Module, not to a value of type {type(network).__name__}"
        )
    if isinstance(network, torch.jit.ScriptModule):
        raise UserError(
            "no parts can be fitted to a program of TorchScript; give the network from which it was made"
        )
    if next(network.parameters(), None) is None:
        raise UserError("the network has no parameters; give it with its weights, before it is frozen")
    return copied(network).float().eval()


def save_parts(folder: Path, parts: Mapping[str, Part], network: nn.Module) -> None:
    """Write parts to a folder, with the hash of the weights that they were fitted to."""
    folder.mkdir(parents=True, exist_ok=True)
    known = parts[OUTPUT].settings if OUTPUT in parts else {}
    weights = known.get("weights") or weights_hash(network)
    for name, part in parts.items():
        save_part(folder, name, part, weights)
