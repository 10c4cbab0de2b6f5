"""The training step: eager, with learning rates on the device, and recorded (by a fake CUDA graph on a CPU)."""

import copy

import pytest
import torch
from torch import nn

from ttdg.networks import cuda_graph
from ttdg.training.averaging import WeightAverage
from ttdg.training.loop import make_fabric
from ttdg.training.recipe import Recipe
from ttdg.training.update import Optimisers, Update

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, 0.1),
}


class Squared(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 2, 1)

    def forward(self, images, labels):
        return (self.layer(images)[:, 0] - labels).square().mean()


def an_update(kind, recorded):
    fabric, learner = make_fabric(Recipe(), "cpu"), Squared()
    wrapped, optimiser = fabric.setup(learner, OPTIMISERS[kind](learner.parameters()))
    average = WeightAverage(learner, 0.5)
    return Update(fabric, wrapped, Optimisers([optimiser], recorded), recorded, average), learner


def batch(number):
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(2, 3, 4, 4, generator=generator)
    return images, (images[:, 0] > 0).long(), 1 - number / 10


@pytest.fixture
def graphs(monkeypatch):
    """Replace CUDA graphs by a fake. Capturing executes nothing on a GPU, so the fake undoes its changes."""
    replays = []

    def record(work, inputs):
        update = work.__self__
        optimiser = update.optimisers.optimisers[0].optimizer
        values = [*update.learner.parameters(), *update.average.learner.parameters()]
        values += [x for state in optimiser.state.values() for x in state.values()]
        before = copy.deepcopy([x.detach() for x in values])
        output = work(*inputs)
        with torch.no_grad():
            for value, old in zip(values, before, strict=True):
                value.copy_(old)

        class Graph:
            def replay(self):
                replays.append(1)
                output.copy_(work(*inputs))

        return Graph(), output

    monkeypatch.setattr(cuda_graph, "_can_capture", lambda inputs: True)
    monkeypatch.setattr(cuda_graph, "_run_on_side_stream", lambda work, inputs: work(*inputs))
    monkeypatch.setattr(cuda_graph, "_capture", record)
    return replays


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_recorded_updates_equal_eager_updates(graphs, kind):
    (plain, a), (recorded, b) = an_update(kind, False), an_update(kind, True)
    for number in range(9):
        assert torch.allclose(plain(*batch(number)), recorded(*batch(number)), atol=1e-6)
    assert len(graphs) == 9 - cuda_graph.WARM_UP_CALLS
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.allclose(x, y, atol=1e-6)
    for x, y in zip(plain.average.learner.parameters(), recorded.average.learner.parameters(), strict=True):
        assert torch.allclose(x, y, atol=1e-6)
    assert all(p.grad is None for p in a.parameters())


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_a_saved_state_resumes_with_rates_on_the_device_or_without(tmp_path, kind, first, second):
    (whole, a), (begun, b), (resumed, c) = (an_update(kind, recorded) for recorded in (second, first, second))
    for number in range(4):
        whole(*batch(number))
        begun(*batch(number))
    torch.save((b.state_dict(), begun.optimisers.state_dict()), tmp_path / "state.pt")
    weights, states = torch.load(tmp_path / "state.pt", map_location="cpu", weights_only=True)
    c.load_state_dict(weights)
    resumed.optimisers.load_state_dict(states)
    assert isinstance(resumed.optimisers.optimisers[0].param_groups[0]["lr"], torch.Tensor) is second
    for number in range(4, 7):
        assert torch.allclose(whole(*batch(number)), resumed(*batch(number)), atol=1e-6)
    for x, y in zip(a.parameters(), c.parameters(), strict=True):
        assert torch.allclose(x, y, atol=1e-6)


def test_rates_on_the_device_are_changed_in_place():
    for recorded in (False, True):
        update, _ = an_update("sgd", recorded)
        group = update.optimisers.optimisers[0].param_groups[0]
        kept = group["lr"]
        update.optimisers.rate(0.25)
        assert float(group["lr"]) == pytest.approx(0.025)
        assert (group["lr"] is kept) is recorded
