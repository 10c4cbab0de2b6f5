import copy

import pytest
import torch
import torch.nn.functional as F

from ttdg.adaptation import FrozenPredictor, SiteLearner, adapt
from ttdg.adaptation.site_learning.self_training import sharpen, soft_label_loss
from ttdg.adaptation.site_learning.strong_views import draw_views, move_labels, strong_view
from ttdg.networks import NetworkSpec, Segmenter

QUICK = {"steps": 1, "draw": 4}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Segmenter(NetworkSpec(labels=3, encoder="light")).eval()


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


def test_sharpening_keeps_the_order_and_sums_to_one():
    p = torch.rand(2, 4, 5, 5).softmax(1)
    q = sharpen(p, 2.0, "softmax")
    assert torch.allclose(q.sum(1), torch.ones(2, 5, 5))
    assert torch.equal(q.argsort(1), p.argsort(1))
    assert torch.allclose(sharpen(p, 1.0, "softmax"), p)
    assert torch.allclose(sharpen(torch.tensor([[[[0.8]]]]), 2.0, "sigmoid"), torch.tensor(0.64 / 0.68))


def test_the_loss_of_certain_labels_is_cross_entropy_plus_one_minus_dice():
    torch.manual_seed(1)
    logits, hard = torch.randn(2, 3, 8, 8), torch.randint(0, 3, (2, 8, 8))
    labels = F.one_hot(hard, 3).movedim(-1, 1).float()
    p = logits.softmax(1)[:, 1:]
    both, sizes = (p * labels[:, 1:]).sum((2, 3)), (p + labels[:, 1:]).sum((2, 3))
    expected = F.cross_entropy(logits, hard) + 1 - ((2 * both + 1) / (sizes + 1)).mean()
    assert torch.allclose(soft_label_loss(logits, labels, "softmax"), expected)


def test_labels_move_with_their_images():
    images = torch.zeros(3, 3, 32, 32)
    images[:, :, 8:16, 6:20] = 1
    generator = torch.Generator().manual_seed(0)
    parameters = draw_views(3, generator, "standard")
    moved_images, grid = strong_view(images, parameters)
    labels = move_labels(images[:, :1].clone(), grid)
    inside = labels > 0.99
    outside = labels < 0.01
    brightness = moved_images.mean(1, keepdim=True)
    for i in range(3):
        assert brightness[i][inside[i]].min() > brightness[i][outside[i]].max()


def test_images_of_one_channel_are_moved_without_a_change_of_colour():
    images = torch.rand(2, 1, 16, 16)
    parameters = draw_views(2, torch.Generator().manual_seed(0))
    moved, grid = strong_view(images, parameters)
    assert torch.equal(moved, move_labels(images, grid))
