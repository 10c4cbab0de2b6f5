import copy
from functools import partial

import pytest
import torch
from torch import nn

from ttdg.adaptation import adapt
from ttdg.adaptation import views as symmetries
from ttdg.adaptation.methods.cotta import confidence

adapt = partial(adapt, activation="softmax")

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def a_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1))


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(value, b.state_dict()[key]) for key, value in a.state_dict().items())


def test_certain_restoring_gives_the_source_and_no_restoring_does_not():
    network = a_network()
    for probability, same in ((1.0, True), (0.0, False)):
        adapter = adapt(network, "cotta", lr=1e-2, restore=probability)
        adapter(X)
        assert equal(adapter.network, network) is same


def test_restoring_meets_its_share_of_numbers():
    network = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.Conv2d(64, 2, 1))
    adapter = adapt(network, "cotta", lr=1e-2, restore=0.25)
    adapter(X)
    back = (adapter.network[0].weight == network[0].weight).float().mean().item()
    assert back == pytest.approx(0.25, abs=0.05)


def test_restoring_draws_number_by_number_in_the_order_of_the_weights():
    network = a_network()
    adapter = adapt(network, "cotta", restore=0.3, seed=7)
    with torch.no_grad():
        for parameter in adapter.parameters:
            parameter.add_(1)
    moved = [parameter.detach().clone() for parameter in adapter.parameters]
    adapter._restore_at_random(torch.tensor(True))
    draw = torch.Generator().manual_seed(7)
    for now, before, source in zip(adapter.parameters, moved, network.parameters(), strict=True):
        back = torch.rand(source.shape, generator=draw) < 0.3
        assert torch.equal(now, torch.where(back, source, before))


def test_certain_restoring_mends_weights_that_are_not_finite_in_any_layout():
    network = a_network().to(memory_format=torch.channels_last)
    adapter = adapt(network, "cotta", restore=1.0)
    with torch.no_grad():
        for parameter in adapter.parameters:
            parameter.fill_(torch.nan)
    adapter._restore_at_random(torch.tensor(True))
    assert equal(adapter.network, network)


def test_a_teacher_with_momentum_one_never_moves_and_the_source_is_kept_as_it_was():
    network = a_network()
    adapter = adapt(network, "cotta", lr=1e-2, momentum=1.0)
    for _ in range(3):
        adapter(X)
    assert equal(adapter.teacher, network)
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in adapter._source.items())


@pytest.mark.parametrize(("threshold", "views"), [(0.0, False), (1.0, True)])
def test_one_step_follows_the_teacher_by_hand(threshold, views):
    network, lr, momentum = a_network(), 1e-2, 0.9
    adapter = adapt(network, "cotta", lr=lr, momentum=momentum, restore=0.0, threshold=threshold)
    answer = adapter(X)

    student = copy.deepcopy(network).train()  # training mode uses batch statistics
    if views:
        turns = [
            lambda x: x,
            lambda x: x.flip(3),
            lambda x: x.flip(2),
            *(lambda x, k=k: x.rot90(k, (2, 3)) for k in (1, 2, 3)),
        ]
        back = [*turns[:3], *(lambda x, k=k: x.rot90(-k, (2, 3)) for k in (1, 2, 3))]
        target = (
            torch.stack([b(student(t(X)).softmax(1)) for t, b in zip(turns, back, strict=True)])
            .mean(0)
            .detach()
        )
    else:
        target = student(X).softmax(1).detach()
    assert torch.allclose(answer.softmax(1), target, atol=1e-5)
    loss = -(target * student(X).log_softmax(1)).sum(1).mean()
    grads = torch.autograd.grad(loss, list(student.parameters()))
    for moved, slow, start, g in zip(
        adapter.network.parameters(), adapter.teacher.parameters(), network.parameters(), grads, strict=True
    ):
        sure = g.abs() > 1e-6  # where a gradient is rounding error, Adam's first step is its sign
        step = start - lr * g / (g.abs() + 1e-8)
        assert torch.allclose(moved[sure], step[sure], atol=1e-5)
        assert torch.allclose(slow, momentum * start + (1 - momentum) * moved, atol=1e-6)


def test_the_teacher_follows_the_student_before_it_is_restored():
    network = a_network()
    adapter = adapt(network, "cotta", lr=1e-2, momentum=0.9, restore=1.0)
    adapter(X)
    assert equal(adapter.network, network)
    assert not torch.allclose(adapter.teacher[0].weight, network[0].weight, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-3, 1e3], ids=["unsure source", "sure source"])
def test_the_source_decides_on_views_whatever_the_student_thinks_now(scale):
    network = a_network()
    network[2].weight.data.mul_(scale)
    adapter = adapt(network, "cotta", threshold=0.9)
    with torch.no_grad():
        adapter.network[2].weight.div_(scale**2)  # the student is sure if the source is not, and vice versa
        views, alone = symmetries.average_over_views(adapter.teacher, X, "softmax"), adapter.teacher(X)
        expected, other = (views, alone) if scale < 1 else (alone, views)
    answer = adapter(X).softmax(1)
    assert torch.allclose(answer, expected.softmax(1), atol=1e-6)
    assert not torch.allclose(answer, other.softmax(1), atol=1e-6)


def test_after_the_stream_the_teacher_answers_and_nobody_learns():
    adapter = adapt(a_network(), "cotta", lr=1e-2, momentum=0.5, threshold=1.0)
    adapter(X)
    before = [copy.deepcopy(part.state_dict()) for part in (adapter.network, adapter.teacher)]
    drawn, moments = adapter.generator.get_state(), copy.deepcopy(adapter.optimiser.state_dict()["state"])
    answer = adapter.predict_frozen(X + 1)
    for part, values in zip((adapter.network, adapter.teacher), before, strict=True):
        assert all(torch.equal(value, values[key]) for key, value in part.state_dict().items())
    assert torch.equal(adapter.generator.get_state(), drawn)
    now = adapter.optimiser.state_dict()["state"]
    assert all(torch.equal(now[i][key], moments[i][key]) for i in moments for key in moments[i])
    with torch.no_grad():
        assert torch.equal(answer, symmetries.average_over_views(adapter.teacher, X + 1, "softmax"))
        assert not torch.allclose(answer, adapter.network(X + 1), atol=1e-3)


def test_a_batch_whose_loss_is_not_finite_moves_no_weight():
    adapter = adapt(a_network(), "cotta", lr=1e-2, momentum=0.9, restore=0.0)
    adapter(X)  # student, teacher and source now differ
    adapter.restore = 1.0
    before = [p.detach().clone() for part in (adapter.network, adapter.teacher) for p in part.parameters()]
    adapter(torch.full_like(X, torch.nan))
    after = [p for part in (adapter.network, adapter.teacher) for p in part.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_confidence_is_measured_on_foreground_and_its_border():
    logits = torch.zeros(1, 2, 16, 16)
    logits[:, 0] = 9.0  # sure background …
    logits[:, :, 0, 0] = torch.tensor([0.0, 0.2])  # … and one unsure pixel of foreground
    p = logits.softmax(1).amax(1)[0]
    assert confidence(logits, "softmax").item() == pytest.approx(p[:3, :3].mean().item(), abs=1e-6)
    assert confidence(torch.full((1, 1, 4, 4), -3.0), "sigmoid").item() == pytest.approx(0.9526, abs=1e-3)
