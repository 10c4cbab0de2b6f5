"""`universe-choice` is the judge with universe evidence; its variants differ in the evidence only."""

import pytest
import torch

from ttdg.adaptation.universe.choice import VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_the_judge_with_that_evidence(variant, ready):
    source, images = ready("universe-choice"), torch.randn(3, 3, 32, 32)
    adapter = source.adapt("universe-choice", variant=variant, margin=0.0)
    twin = source.adapt("judge", evidence=VARIANTS[variant], margin=0.0)
    assert torch.equal(adapter(images), twin(images))
    assert torch.equal(adapter.verdict.prediction.dice, twin.verdict.prediction.dice)


def test_only_universe_signals_are_used(ready):
    adapter = ready("universe-choice").adapt("universe-choice")
    assert adapter.signal_names
    assert all(name.startswith("universe") for name in adapter.signal_names)


def test_the_random_universe_control_keeps_the_projection(ready):
    source = ready("universe-choice")
    learned, random = (source.adapt("universe-choice", variant=v) for v in ("full", "random-universe"))
    assert not torch.equal(learned.prior.universe, random.prior.universe)
    assert torch.equal(learned.prior.output.weight, random.prior.output.weight)
    assert learned.signal_names == random.signal_names
