"""Notes of `ttdg evaluate` about scores that are easily misread."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ttdg.evaluation.tuned_options import Choice


def evaluation_notes(
    methods: Sequence[str],
    sites: Iterable[str],
    sources: Iterable[str],
    searched: "Mapping[str, Choice]",
    given: Mapping[str, Any],
    batch: int,
    stream: str,
) -> list[str]:
    """Return all notes about an evaluation.

    Args:
        methods: Methods that are scored.
        sites: Sites that are scored.
        sources: Sites on which the model was trained.
        searched: Tuned options of the methods that have some.
        given: Options given by hand.
        batch: Batch size.
        stream: Stream of the evaluation.
    """
    notes = (
        trained_at_note(sites, sources),
        tuned_batch_note(searched, given, batch),
        tuned_stream_note(searched, given, stream),
        single_image_note(methods, batch),
    )
    return [note for note in notes if note]


def trained_at_note(sites: Iterable[str], sources: Iterable[str]) -> str | None:
    """Return a note that names scored sites on which the model was trained."""
    seen = [name for name in sites if name in set(sources)]
    said = "this model was trained there, so its score is not of an unseen site"
    return f"{', '.join(seen)}: {said}" if seen else None


def single_image_note(methods: Iterable[str], batch: int) -> str | None:
    """Return a note that names methods which need at least two images in a batch."""
    from ttdg.adaptation import METHODS

    idle = [name for name in methods if batch == 1 and "batch ≥ 2" in METHODS[name].needs]
    return (
        f"{', '.join(idle)}: one image a batch is answered as `source` does; use --batch 2 or more"
        if idle
        else None
    )


def tuned_batch_note(searched: "Mapping[str, Choice]", given: Mapping[str, Any], batch: int) -> str | None:
    """Return a note that names methods tuned at another batch size; options given by hand do not count."""
    sizes = {name: choice.batch for name, choice in _in_use(searched, given).items()}
    others = [f"{name} (batch {size})" for name, size in sizes.items() if size not in (batch, None)]
    return f"run here at batch {batch}, tuned at another: {', '.join(others)}" if others else None


def tuned_stream_note(searched: "Mapping[str, Choice]", given: Mapping[str, Any], stream: str) -> str | None:
    """Return a note that names methods tuned on another stream, on which they may answer otherwise."""
    from ttdg.adaptation import METHODS

    used = _in_use(searched, given)
    others = [
        f"{name} ({choice.stream})"
        for name, choice in used.items()
        if METHODS[name].memory and choice.stream != stream
    ]
    return f"run here on the stream {stream}, tuned on another: {', '.join(others)}" if others else None


def _in_use(searched: "Mapping[str, Choice]", given: Mapping[str, Any]) -> "Mapping[str, Choice]":
    return {name: choice for name, choice in searched.items() if choice.options.keys() - given.keys()}
