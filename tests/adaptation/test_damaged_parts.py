"""A part with absent, cut or odd content is a sentence about this part, and an error of the program is not."""

from dataclasses import replace

import pytest
import torch

from ttdg.adaptation import METHODS, build
from ttdg.checkpoints import reading_part
from ttdg.errors import UserError

FITTED = {"universe": "judge", "universe-gradient": "prior", "universe-literal": "prior", "deynet": "deynet"}
FITTED |= {"nc-ttt": "nc-ttt", "tasd-r": "tasd-r", "itta": "itta"}
ODD = (None, "x", [[]])


def damaged(part):
    """The part without each group of its tensors, with it cut, and with odd settings."""
    groups = {name.rpartition(".")[0]: name for name in part.tensors}.values()
    for name in groups:
        rest = {other: value for other, value in part.tensors.items() if other != name}
        yield replace(part, tensors=rest)
        yield replace(part, tensors={**rest, name: part.tensors[name].flatten()[:1]})
    for name in part.settings:
        yield replace(part, settings={other: x for other, x in part.settings.items() if other != name})
        yield from (replace(part, settings={**part.settings, name: value}) for value in ODD)


def test_every_part_is_damaged_below():
    assert set(FITTED.values()) == {part for method in METHODS.values() for part in method.parts}


@pytest.mark.parametrize("method", FITTED)
def test_a_damaged_part_is_used_or_refused_in_a_sentence(method, ready):
    source, refused, name = ready(method), 0, FITTED[method]
    for part in damaged(source.parts[name]):
        try:
            replace(source, parts={**source.parts, name: part}).adapt(method)
        except UserError:
            refused += 1
    assert refused


def test_an_error_of_a_builder_is_not_taken_for_a_damaged_part(ready, monkeypatch):
    source = ready("judge")

    def broken(*arguments, **options):
        raise TypeError("a bug")

    monkeypatch.setitem(METHODS, "judge", replace(METHODS["judge"], build=broken))
    with pytest.raises(TypeError, match="a bug"):
        build.build_adapter(source, "judge", {})


def test_lack_of_memory_is_not_taken_for_damage():
    with pytest.raises(torch.OutOfMemoryError), reading_part("judge"):
        raise torch.OutOfMemoryError("no memory")
    with (
        pytest.raises(UserError, match=r"'judge' of this model cannot be used .*ttdg fit-judge"),
        reading_part("judge"),
    ):
        raise KeyError("regions")
