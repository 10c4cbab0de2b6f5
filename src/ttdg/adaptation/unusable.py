"""Images that no method can use: without finite values, too large, or frames that show nothing.

`guarded` puts the same rule around every method: an unusable image never reaches it. The other images of the batch are
answered as if the unusable one were absent, and memories and statistics do not see it. The unadapted network answers
frames that show nothing (`empty_frames`). Values that are not finite, or so large that their squares lead to infinity,
are answered with zero for every label, which claims nothing and gives an empty mask. A batch without unusable images is
answered as without the rule.

The same place leaves `torch.inference_mode`, in which no method could learn.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.adaptation.abilities import Adapter, Assessment, Images, Logits, Progress
from ttdg.adaptation.empty_frames import shows_nothing
from ttdg.adaptation.inference_mode import normal_mode, normal_tensor
from ttdg.adaptation.own_network.conversions import Conversions
from ttdg.errors import TtdgWarning, UserError
from ttdg.pickling import LEAST, remade

LIMIT = 1e6  # of absolute values; raw 16-bit images stay below 7e4
UNUSABLE = "unusable image"  # the choice that an assessment names


def usable(images: Images) -> Bool[Tensor, " b"]:
    """Return which images have finite values of at most `LIMIT`."""
    return (images.abs() <= LIMIT).flatten(1).all(1)  # false for NaN


def spread_rows(logits: Float[Tensor, "k l *hw"], rows: Bool[Tensor, " n"]) -> Float[Tensor, "n l *hw"]:
    """Return the logits of the chosen rows in their places, and zeros in all other rows."""
    everywhere = logits.new_zeros(len(rows), *logits.shape[1:])
    everywhere[rows] = logits
    return everywhere


def guarded(build: Callable[[], Adapter], conversions: Conversions) -> Adapter:
    """Build an adapter and keep unusable images away from it; it stays the same object with the same abilities.

    Args:
        build: Builds the adapter.
        conversions: Converts the images that reach the adapter, and its answers.
    """
    adapter: Any = build()
    adapter.__class__ = _guarded_kind(type(adapter))
    adapter._conversions, adapter._rows = conversions, None
    return adapter


_KINDS: dict[type, type] = {}  # class of adapters → the same class with the guard
ALWAYS = ("__call__", "reset", "_around", "__reduce_ex__")
OPTIONAL = ("predict_frozen", "learn", "assessment", "load_state")


def _guarded_kind(kind: type) -> type:
    """The subclass whose methods that take images leave unusable ones out, created once."""
    if kind not in _KINDS:
        names = [*ALWAYS, *(name for name in OPTIONAL if hasattr(kind, name))]
        methods = {name: vars(_Guarded)[name] for name in names}
        named = {name: getattr(kind, name) for name in ("__doc__", "__module__", "__qualname__")}
        _KINDS[kind] = type(kind.__name__, (kind,), {**methods, **named, "_kind": kind})
    return _KINDS[kind]


class _Guarded:
    """The methods of guarded adapters; `_kind` is the class without the guard."""

    _kind: Any
    _conversions: Conversions
    _rows: Bool[Tensor, " b"] | None  # the usable images of the last batch; None if all were

    def __call__(self, images: Images) -> Logits:
        """Adapt to the usable images of the batch and return the logits of all."""
        with normal_mode():
            return self._around(lambda batch: self._kind.__call__(self, batch), images)

    def predict_frozen(self, images: Images) -> Logits:
        """Predict without an update."""
        with normal_mode():
            return self._around(lambda batch: self._kind.predict_frozen(self, batch), images)

    def learn(
        self, site: Iterable[Float[Tensor, "_b c h w"]], progress: Progress = lambda done, total: None
    ) -> None:
        """Learn from the usable images of a site."""
        if isinstance(site, Tensor):
            raise UserError("an adapter learns batches of images; give images.split(8), not one tensor")
        with normal_mode():
            self._kind.learn(self, _usable_batches(site, self._conversions), progress)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        with normal_mode():
            self._kind.load_state(self, {name: normal_tensor(value) for name, value in state.items()})

    def assessment(self) -> Assessment | None:
        """The assessment of the last batch; an unusable image has an expected Dice of 0 with the interval 0 ± 1."""
        known, rows = self._kind.assessment(self), self._rows
        if rows is None:
            return known
        dice = torch.zeros(len(rows), device=rows.device, dtype=torch.float64)
        half_width, choices, unadapted = torch.ones_like(dice), [UNUSABLE] * len(rows), None
        if known is not None and len(known.choices) == int(rows.sum()):
            dice[rows], half_width[rows] = known.dice.to(dice), known.half_width.to(dice)
            for row, choice in zip(rows.nonzero()[:, 0].tolist(), known.choices, strict=True):
                choices[row] = choice
            if known.unadapted is not None:
                unadapted = torch.zeros_like(dice)
                unadapted[rows] = known.unadapted.to(dice)
        return Assessment(tuple(choices), dice, half_width, unadapted)

    def reset(self) -> None:
        """Reset the adapter."""
        with normal_mode():
            self._kind.reset(self)
        self._rows = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """How to pickle and to copy the adapter."""
        return remade(self._kind.__reduce_ex__(self, max(LEAST, protocol)), _guarded_kind, self._kind)

    def _around(self, answer: Callable[[Images], Logits], images: Images) -> Logits:
        convert = self._conversions
        images, finite, inner = convert.images(images), usable(images), answer
        empty = _empty(images, finite, convert)
        rows = finite & ~empty
        if convert.by_label:
            answer = lambda batch: convert.answer(inner(batch))  # noqa: E731
        if len(rows) and rows.all():
            logits, self._rows = answer(images), None
            return logits
        _warn(finite, empty)
        logits = spread_rows(answer(images[rows]), rows) if rows.any() else convert.nothing(images)
        if empty.any():
            logits[empty] = convert.alone(images[empty]).to(logits)
        self._rows = rows
        return logits


def _empty(images: Images, finite: Bool[Tensor, " n"], convert: Conversions) -> Bool[Tensor, " n"]:
    """Return which finite images show nothing. The unadapted network answers every image by itself, so none matters."""
    return torch.zeros_like(finite) if convert.method == "source" else finite & shows_nothing(images)


def _usable_batches(site: Iterable[Float[Tensor, "_b c h w"]], convert: Conversions) -> Iterator[Tensor]:
    """Batches of the usable images, as the adapter receives them."""
    for images in map(convert.images, site):
        finite = usable(images)
        empty = _empty(images, finite, convert)
        rows = finite & ~empty
        _warn(finite, empty)
        if rows.any():
            yield images if rows.all() else images[rows]


def _warn(finite: Bool[Tensor, " n"], empty: Bool[Tensor, " n"]) -> None:
    """Say how many images are not usable, if any."""
    if not finite.all():
        warnings.warn(
            f"{int((~finite).sum())} of {len(finite)} images hold values that are not finite or beyond ±{LIMIT:.0e}; "
            "they change nothing and are answered with zeros",
            TtdgWarning,
            stacklevel=4,
        )
    if empty.any():
        warnings.warn(
            f"{int(empty.sum())} of {len(empty)} images show nothing but one value or noise; "
            "they change nothing and are answered by the unadapted network",
            TtdgWarning,
            stacklevel=4,
        )
