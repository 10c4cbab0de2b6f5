import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from ttdg import adaptation
from ttdg.adaptation import FrozenPredictor, SiteLearner, defaults
from ttdg.adaptation.site_learning.learner import SelfTraining
from ttdg.adaptation.site_learning.strong_views import draw_views, strong_view
from ttdg.networks import NetworkSpec, Segmenter, cuda_graph

adapt = partial(adaptation.adapt, activation="softmax")  # the labels of the network exclude each other


QUICK = {"steps": 1, "draw": 4}


@pytest.fixture(scope="module")
def network(ready):
    return ready("dpl", labels=3).network


def some_images(count=4, size=32, seed=0):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed)) - 0.4


def test_it_can_learn_a_site_and_predict_without_an_update(network):
    adapter = adapt(network, "self-training", **QUICK)
    assert isinstance(adapter, SiteLearner)
    assert isinstance(adapter, FrozenPredictor)


def test_a_teacher_that_keeps_all_of_its_weights_stays_the_source(network):
    adapter = adapt(network, "self-training", momentum=1.0, **QUICK)
    for seed in range(3):
        answer = adapter(some_images(seed=seed))
    with torch.no_grad():
        assert torch.equal(answer, network(some_images(seed=2)))


def test_a_teacher_that_keeps_none_of_its_weights_is_the_student(network):
    adapter = adapt(network, "self-training", momentum=0.0, lr=1e-3, **QUICK)
    adapter(some_images())
    for mine, other in zip(adapter.teacher.parameters(), adapter.network.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=1e-7)


def test_the_statistics_of_the_source_never_change(network):
    adapter = adapt(network, "self-training", lr=1e-3, **QUICK)
    adapter(some_images())
    source = dict(network.named_buffers())
    for name, value in adapter.network.named_buffers():
        assert torch.equal(value, source[name])
    for name, value in adapter.teacher.named_buffers():
        assert torch.equal(value, source[name])


def test_a_batch_that_is_not_finite_is_answered_and_leaves_no_trace(network):
    adapter = adapt(network, "self-training", lr=1e-3, **QUICK)
    adapter(torch.full((2, 3, 32, 32), torch.nan))
    assert len(adapter.memory) == 0
    other = adapt(network, "self-training", lr=1e-3, **QUICK)
    assert torch.equal(adapter(some_images()), other(some_images()))


def test_reset_forgets_the_site_and_repeats_the_stream(network):
    adapter = adapt(network, "self-training", lr=1e-3, **QUICK)
    first = [adapter(some_images(seed=seed)) for seed in range(3)]
    adapter.reset()
    assert len(adapter.memory) == 0
    again = [adapter(some_images(seed=seed)) for seed in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_folder_is_learned_with_a_rate_that_falls_to_zero_and_reset_restores_the_source(network):
    adapter = adapt(network, "self-training", lr=1e-3, folder_steps=4, draw=4)
    rates = []
    learn = adapter._learn
    adapter._learn = lambda: (rates.append(adapter.optimiser.param_groups[0]["lr"]), learn())
    adapter.learn(some_images(seed=seed) for seed in range(3))
    assert len(adapter.memory) == 12
    assert rates[0] == 1e-3
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0
    with torch.no_grad():
        assert not torch.equal(adapter.predict_frozen(some_images()), network(some_images()))
        adapter.reset()
        assert torch.equal(adapter.predict_frozen(some_images()), network(some_images()))
    assert adapter.optimiser.param_groups[0]["lr"] == 1e-3


def test_the_order_of_a_folder_does_not_change_what_is_stored(network):
    one, two = (adapt(network, "self-training", folder_steps=1, draw=4) for _ in range(2))
    batches = [some_images(seed=seed) for seed in range(3)]
    one.learn(iter(batches))
    two.learn(iter(batches[::-1]))
    first, second = (
        memory.pixels[: len(memory)].flatten(1).sum(1).sort()[0] for memory in (one.memory, two.memory)
    )
    assert torch.equal(first, second)


def test_an_empty_folder_changes_nothing(network):
    adapter = adapt(network, "self-training")
    adapter.learn(iter(()))
    with torch.no_grad():
        assert torch.equal(adapter.predict_frozen(some_images()), network(some_images()))


def test_learning_improves_a_network_whose_last_layer_was_disturbed():
    """On images of a bright square, a trained network whose weights were disturbed recovers without labels."""
    torch.manual_seed(0)
    images = 0.2 * torch.rand(16, 3, 32, 32)
    labels = torch.zeros(16, 32, 32, dtype=torch.long)
    for i in range(16):
        y, x = torch.randint(4, 16, (2,)).tolist()
        images[i, :, y : y + 12, x : x + 12] += 0.7
        labels[i, y : y + 12, x : x + 12] = 1
    network = Segmenter(NetworkSpec(labels=2, encoder="light")).train()
    optimiser = torch.optim.AdamW(network.parameters(), 3e-3)
    for _ in range(60):
        loss = F.cross_entropy(network(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    network.eval()
    disturbed = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in disturbed.parameters():
            parameter += 0.12 * parameter.std().nan_to_num(0.0) * torch.randn_like(parameter)

    def dice(logits):
        mask = logits.argmax(1)
        return (2 * (mask * labels).sum() / (mask.sum() + labels.sum())).item()

    adapter = adapt(disturbed, "self-training", lr=1e-3, folder_steps=40, draw=8)
    before = dice(adapter.predict_frozen(images))
    adapter.learn(iter(images.split(4)))
    assert dice(adapter.predict_frozen(images)) > before


def test_progress_is_reported_after_every_step(network):
    adapter, seen = adapt(network, "self-training", folder_steps=3, draw=2), []
    adapter.learn([some_images()], lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_step_equals_a_plain_implementation(network):
    """Two steps on given views: separate passes for the mirror images, torch's own AdamW, an average by hand."""
    options = {"lr": 1e-3, "momentum": 0.9, "sharpness": 3.0}
    adapter = adapt(network, "self-training", **options)
    student, teacher = copy.deepcopy(network), copy.deepcopy(network)
    optimiser = torch.optim.AdamW(student.parameters(), lr=1e-3)
    for seed in range(2):
        weak, strong = some_images(seed=seed), some_images(seed=seed + 10)
        _, grid = strong_view(weak, draw_views(4, torch.Generator().manual_seed(seed)))
        loss = adapter._step(weak, strong, grid)
        with torch.no_grad():
            mean = teacher(weak).softmax(1) / 2 + teacher(weak.flip(3)).flip(3).softmax(1) / 2
        labels = F.grid_sample(
            mean**3 / (mean**3).sum(1, keepdim=True), grid, padding_mode="reflection", align_corners=False
        )
        logits = student(strong)
        p, y = logits.softmax(1)[:, 1:], labels[:, 1:]
        dice = (2 * (p * y).sum((2, 3)) + 1) / ((p + y).sum((2, 3)) + 1)
        expected = F.cross_entropy(logits, labels) + 1 - dice.mean()
        optimiser.zero_grad()
        expected.backward()
        optimiser.step()
        with torch.no_grad():
            for mine, other in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.copy_(0.9 * mine + 0.1 * other)
        assert torch.allclose(loss, expected.detach(), rtol=1e-4)
    source = list(network.parameters())
    for found, plain in ((adapter.network, student), (adapter.teacher, teacher)):
        # Adam divides by the gradient's size, so weights with a tiny gradient may differ.
        moves = torch.cat([(a - b).flatten() for a, b in zip(plain.parameters(), source, strict=True)])
        errors = torch.cat(
            [(a - b).flatten() for a, b in zip(plain.parameters(), found.parameters(), strict=True)]
        )
        assert errors.norm() < 0.02 * moves.norm()


@pytest.mark.parametrize("where", ["strong view", "weights"])
def test_a_step_whose_loss_is_not_finite_changes_neither_student_nor_teacher(network, where):
    adapter = adapt(network, "self-training", lr=1e-3, **QUICK)
    adapter(some_images())
    before = {name: value for name, value in adapter.state().items() if not name.startswith("memory.")}
    weak, strong, guide = some_images(), some_images(seed=1), ()
    _, grid = strong_view(weak, draw_views(4, torch.Generator().manual_seed(0)))
    if where == "strong view":
        strong = torch.full_like(strong, torch.nan)
    else:
        guide = torch.ones(4, 3, 32, 32) / 3, torch.ones(4, 1, 1, 1), torch.zeros(4, 1, 32, 32)
    assert not adapter._step(weak, strong, grid, *guide).isfinite()
    after = adapter.state()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_guide_teaches_the_student_its_labels(network):
    """The guide asks for class 2 everywhere."""

    class Guided(SelfTraining):
        def _guide(self, rows):
            labels = F.one_hot(torch.full((len(rows), 32, 32), 2), 3).movedim(-1, 1).float()
            return labels, torch.ones(len(rows), 1, 1, 1), torch.ones(len(rows), 1, 32, 32)

    options = {**defaults("self-training"), "lr": 1e-2, "folder_steps": 20, "draw": 4}
    adapter = Guided(copy.deepcopy(network), **options)
    adapter.learn([some_images()])
    plain = adapt(network, "self-training", **options)
    plain.learn([some_images()])
    student = [a.network(some_images()).softmax(1)[:, 2].mean() for a in (adapter, plain)]
    assert student[0] > 0.9
    assert student[1] < student[0] - 0.2


def test_without_the_dice_term_the_loss_is_cross_entropy_alone(network):
    losses = {}
    for dice in (True, False):
        adapter = adapt(network, "self-training", dice=dice, **QUICK)
        adapter(some_images())
        losses[dice] = adapter.loss.item()
    assert 0 < losses[False] < losses[True]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recorded_folder_equals_direct_calls_at_a_falling_rate(network):
    def weights(adapter):
        adapter.learn([some_images(8).cuda()])
        return torch.cat([x.flatten() for x in adapter.teacher.parameters()])

    options = {"lr": 1e-3, "folder_steps": 12, "draw": 4}
    recorded = weights(adapt(copy.deepcopy(network).cuda(), "self-training", **options))
    with cuda_graph.disabled():
        direct = weights(adapt(copy.deepcopy(network).cuda(), "self-training", **options))
    source = torch.cat([x.flatten() for x in network.parameters()]).cuda()
    assert (recorded - direct).norm() < 0.1 * (direct - source).norm()
