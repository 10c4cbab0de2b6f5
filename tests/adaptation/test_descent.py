"""Optimiser steps, skipped steps and snapshots."""

import pytest
import torch
from torch import nn

from ttdg.adaptation.descent import Descent, Snapshot


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_step_is_torch_s_own(kind):
    ours, theirs = nn.Parameter(torch.arange(3.0)), nn.Parameter(torch.arange(3.0))
    descent = Descent([ours], lr=0.1, kind=kind)
    plain = torch.optim.Adam([theirs], 0.1) if kind == "adam" else torch.optim.SGD([theirs], 0.1)
    for _ in range(3):
        descent.step((ours - 1).square().sum())
        plain.zero_grad()
        (theirs - 1).square().sum().backward()
        plain.step()
    assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_moves_nothing_now_or_later(kind, bad):
    hit, spared = (nn.Parameter(torch.arange(3.0)) for _ in range(2))
    descents = {p: Descent([p], lr=0.1, kind=kind) for p in (hit, spared)}
    descents[hit].step((hit * bad).sum())
    assert torch.equal(hit, torch.arange(3.0))
    for p, descent in descents.items():
        descent.step(p.square().sum())
    assert torch.equal(hit, spared)


def test_what_a_loss_does_not_depend_on_stays():
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    descent = Descent([used, unused], lr=0.1)
    descent.step(used.sum())
    descent.step(torch.zeros(()))
    assert torch.equal(unused, torch.ones(2))
    assert torch.allclose(used, torch.full((2,), 0.9))


def test_a_snapshot_puts_values_back_in_place():
    layer = nn.BatchNorm2d(3)
    before, places = (
        Snapshot(layer.state_dict().values()),
        [v.data_ptr() for v in layer.state_dict().values()],
    )
    layer(torch.randn(2, 3, 4, 4))
    nn.init.normal_(layer.weight)
    before.restore()
    assert [v.data_ptr() for v in layer.state_dict().values()] == places
    assert layer.num_batches_tracked == 0
    assert torch.equal(layer.running_mean, torch.zeros(3))
    assert torch.equal(layer.weight, torch.ones(3))
