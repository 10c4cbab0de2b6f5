"""What all source-free methods share: both streams, guards, and saving."""

import copy
import math

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from ttdg.adaptation import METHODS, Counting, FrozenPredictor, Resumable, SiteLearner, adapt
from ttdg.errors import UserError
from ttdg.networks import NetworkSpec, Segmenter

NAMES = ("cbmt", "dpl", "upl-sfda", "cpr")
QUICK = {
    "cbmt": {}, "dpl": {"samples": 2}, "upl-sfda": {}, "cpr": {"samples": 2, "affinity_epochs": 1},
}  # fmt: skip
all_methods = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def network(ready):
    return ready("dpl", labels=3).network


def some_images(count=4, size=32, seed=0):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed)) - 0.4


def quick(network, name, **options):
    return adapt(
        network, name, activation="softmax", **{"steps": 1, "draw": 3, "epochs": 1, **QUICK[name], **options}
    )


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@all_methods
def test_it_learns_sites_resumes_counts_and_needs_no_source_data(network, name):
    adapter = quick(network, name)
    assert all(isinstance(adapter, kind) for kind in (SiteLearner, FrozenPredictor, Resumable, Counting))
    assert (METHODS[name].access, METHODS[name].parts) == ("source-free", ())


@all_methods
def test_a_folder_is_seen_once_in_each_pass_in_batches_of_the_drawn_size(network, name):
    adapter, seen = quick(network, name, epochs=2), []
    adapter._learn = lambda rows: seen.append(rows.tolist())
    adapter.learn([some_images(4), some_images(3, seed=1)])
    assert [len(rows) for rows in seen] == [3, 3, 1, 3, 3, 1]
    first, second = ([row for rows in part for row in rows] for part in (seen[:3], seen[3:]))
    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second


@all_methods
def test_progress_is_reported_after_every_step(network, name):
    adapter, seen = quick(network, name, epochs=2), []
    adapter.learn([some_images(4)], lambda done, total: seen.append((done, total)))
    passes = 3 if name == "cpr" else 2
    assert seen == [(i + 1, 2 * passes) for i in range(2 * passes)]


@all_methods
@pytest.mark.parametrize("images", [0, 1])
def test_an_empty_folder_changes_nothing_and_a_single_image_is_enough(network, name, images):
    adapter = quick(network, name)
    before = adapter.predict_frozen(some_images())
    adapter.learn([some_images(images)] if images else [])
    after = adapter.predict_frozen(some_images())
    assert after.isfinite().all()
    assert torch.equal(before, after) is (images == 0)


@all_methods
def test_a_learned_folder_is_saved_and_answers_as_before(network, name):
    adapter = quick(network, name, lr=1e-3)
    adapter.learn([some_images(4), some_images(3, seed=1)])
    other = quick(network, name, lr=1e-3)
    other.load_state(load(save(adapter.state())))
    assert len(other.memory) == 7
    for images in (some_images(seed=8), some_images(seed=9)):
        assert torch.equal(adapter.predict_frozen(images), other.predict_frozen(images))
        assert torch.equal(adapter(images), other(images))
    assert same(adapter.state(), other.state())


@all_methods
def test_a_run_continued_from_a_saved_state_equals_the_uninterrupted_run(network, name):
    whole, first, second = (quick(network, name, lr=1e-3, capacity=6) for _ in range(3))
    expected = [whole(some_images(seed=seed)) for seed in range(4)]
    for seed in range(2):
        first(some_images(seed=seed))
    second.load_state(load(save(first.state())))
    found = [second(some_images(seed=seed)) for seed in (2, 3)]
    assert all(torch.equal(a, b) for a, b in zip(expected[2:], found, strict=True))


@all_methods
def test_a_state_of_another_network_is_refused_and_changes_nothing(network, name):
    adapter = quick(network, name)
    before = adapter.state()
    other = quick(Segmenter(NetworkSpec(labels=2, encoder="light")).eval(), name)
    with pytest.raises(UserError, match="saved with another network"):
        adapter.load_state(other.state())
    assert same(adapter.state(), before)


@all_methods
def test_reset_after_a_folder_restores_the_source_and_repeats_the_folder(network, name):
    adapter = quick(network, name, lr=1e-3)
    fresh = adapter.state()
    answers = []
    for _ in range(2):
        adapter.learn([some_images(5)])
        answers.append(adapter.predict_frozen(some_images()))
        adapter.reset()
        assert same(adapter.state(), fresh)
    assert torch.equal(*answers)


@all_methods
def test_with_the_sources_statistics_no_buffer_moves(network, name):
    adapter = quick(network, name, statistics="source", lr=1e-3)
    adapter.learn([some_images(5)])
    for twin in adapter._networks(adapter.network).values():
        assert all(torch.equal(a, b) for a, b in zip(twin.buffers(), network.buffers(), strict=True))


@all_methods
def test_networks_are_in_eval_mode_between_steps(network, name):
    adapter = quick(network, name)
    adapter(some_images())
    alone = adapter.predict_frozen(some_images()[:1])
    assert torch.allclose(adapter.predict_frozen(some_images())[:1], alone, atol=1e-5)


@all_methods
def test_weights_that_are_not_finite_return_to_the_source(network, name):
    adapter = quick(network, name)
    step = adapter._learn

    def broken(rows):
        step(rows)
        with torch.no_grad():
            adapter.network.head.bias.fill_(math.nan)

    adapter._learn = broken
    answer = adapter(some_images())
    assert adapter.counts["restored"] == 1
    fresh = quick(network, name)
    assert torch.equal(answer, fresh.predict_frozen(some_images()))


@all_methods
def test_answers_that_are_not_finite_are_replaced_by_the_sources(network, name):
    adapter = quick(network, name)
    adapter._respond = lambda images: torch.full((len(images), 3, *images.shape[2:]), math.inf)
    with torch.no_grad():
        assert torch.equal(adapter.predict_frozen(some_images()), network(some_images()))
    assert adapter.counts["source answers"] == 1


def test_a_structure_that_grows_or_shrinks_by_more_than_half_raises_an_alarm(network):
    adapter = quick(network, "dpl", lr=0.0, statistics="source")
    adapter.learn([some_images(4)])
    assert adapter.counts["area alarms"] == 0

    def everything(rows):
        with torch.no_grad():
            adapter.network.head.bias.copy_(torch.tensor([-99.0, 0.0, 99.0]))

    covered = adapter._areas()
    adapter._learn = everything
    adapter.learn([some_images(4)])
    assert adapter.counts["area alarms"] == int((1 / (covered + 1e-6) > 2).sum()) > 0


@all_methods
def test_dropout_layers_are_active_in_training_only_and_repeatable(name):
    class Dropping(Segmenter):
        def __init__(self) -> None:
            super().__init__(NetworkSpec(labels=2, encoder="light"))
            self.dropout = nn.Dropout(0.5)

        def head(self, decoded):
            return super().head(self.dropout(decoded))

    torch.manual_seed(0)
    network = Dropping().eval()
    one, two = (quick(network, name, lr=1e-3) for _ in range(2))
    first = one(some_images())
    torch.manual_seed(7)
    state = torch.get_rng_state()
    assert torch.equal(two(some_images()), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.predict_frozen(some_images()), one.predict_frozen(some_images()))
    assert not any(module.training for module in one.network.modules())


@pytest.mark.parametrize("name", ["cbmt", "dpl"])
def test_learning_fits_the_labels_of_its_own_site(name):
    """A bright square on noise, which the source finds with doubts: after learning the loss of its labels is lower."""
    torch.manual_seed(0)
    images = 0.2 * torch.rand(8, 3, 32, 32)
    images[:, :, 8:24, 8:24] += 0.6
    labels = torch.zeros(8, 32, 32, dtype=torch.long)
    labels[:, 8:24, 8:24] = 1
    network = Segmenter(NetworkSpec(labels=2, encoder="light")).train()
    optimiser = torch.optim.AdamW(network.parameters(), 3e-3)
    for _ in range(25):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimiser.step()
    network = copy.deepcopy(network).eval()
    adapter = quick(network, name, epochs=8, draw=8, lr=1e-3)
    adapter.learn([images])
    with torch.no_grad():
        before, after = (
            nn.functional.cross_entropy(x, labels) for x in (network(images), adapter.predict_frozen(images))
        )
    assert after < before
