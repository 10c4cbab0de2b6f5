"""SicTTA: grouped statistics, the reliability score, the pool, and that no weight changes."""

import pytest
import torch
from torch import nn

from ttdg.adaptation.methods.sictta import GroupMode, compact_density
from ttdg.errors import UserError
from ttdg.networks import batchnorm


def an_image(seed: int, size: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 3, size, size, generator=generator) * (1 + seed % 3) + seed


def test_statistics_over_groups_are_those_of_each_group_alone():
    layer, x = nn.BatchNorm2d(5), torch.randn(6, 5, 8, 8) * torch.arange(1.0, 7).view(-1, 1, 1, 1)
    nn.init.normal_(layer.weight)
    alone = torch.cat([batchnorm.BATCH(layer, part) for part in x.split(3)])
    assert torch.allclose(GroupMode(3)(layer, x), alone, atol=1e-5)
    single = torch.cat([batchnorm.BATCH(layer, part) for part in x.split(1)])
    assert torch.allclose(GroupMode(1)(layer, x), single, atol=1e-5)


def test_the_density_is_the_row_entropy_of_the_class_matrix():
    logits = torch.randn(1, 3, 4, 4)
    pixels = torch.arange(16)[None]
    u = torch.nn.functional.normalize(logits.softmax(1).flatten(2)[0], dim=0)  # a unit vector for each pixel
    rows = (u @ u.T).softmax(1)
    expected = -(rows * (rows + 1e-5).log()).sum(1).mean()
    assert torch.allclose(compact_density(logits, pixels, "softmax")[0], expected, atol=1e-6)


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_saturated_predictions_tie_whatever_their_shares(head):
    logits = torch.full((2, 2, 10, 20), -40.0)  # in 200 pixels a row of the class matrix is nearly one-hot
    for image, split in enumerate((5, 7)):
        logits[image, 0, :, :split], logits[image, 1, :, split:] = 40.0, 40.0
    first, second = compact_density(logits, torch.arange(200).expand(2, -1), head).tolist()
    assert first == second == pytest.approx(-1e-5, rel=1e-2)


def test_the_density_of_one_softmax_channel_is_a_mistake():
    with pytest.raises(UserError, match="one output channel"):
        compact_density(torch.randn(1, 1, 4, 4), torch.arange(16)[None], "softmax")


def test_classes_that_are_told_apart_are_denser_than_ones_that_are_not():
    sure = torch.zeros(1, 2, 8, 8)
    sure[:, 0, :4], sure[:, 1, 4:] = 20.0, 20.0
    pixels = torch.arange(64)[None]
    for head in ("softmax", "sigmoid"):
        unsure = torch.zeros(1, 2, 8, 8)
        logits = sure if head == "softmax" else sure * 2 - 20
        assert compact_density(logits, pixels, head) < compact_density(unsure, pixels, head)


def test_the_first_image_is_answered_by_the_anchor_and_enters_the_pool(ready):
    source = ready("sictta")
    adapter = source.adapt("sictta")
    assert torch.equal(adapter(an_image(0)), source.adapt("source")(an_image(0)))
    assert len(adapter.pool) == 1


def test_an_identical_image_finds_itself(ready):
    adapter = ready("sictta").adapt("sictta", neighbours=1)
    adapter(an_image(0))
    stored = adapter.pool.columns[0][0]
    group = adapter._neighbourhood(0, stored[None])
    assert torch.allclose(group.blended, stored, atol=1e-5)
    assert torch.equal(group.images[0], an_image(0)[0])
    half = adapter._neighbourhood(0, stored[None] / 2)  # (1 − r) q + r q_j is q_j ≠ q only where r = 1
    assert torch.allclose(half.blended, stored, atol=1e-5)


def test_a_bottleneck_is_pulled_to_its_neighbours_by_hand(ready):
    adapter = ready("sictta").adapt("sictta", neighbours=2)
    keys = torch.tensor([[0.0, 5.0], [3.0, 0.0], [4.0, 3.0]])[..., None, None]
    adapter.pool.push(keys, keys)
    group = adapter._neighbourhood(0, torch.tensor([[2.0, 0.0]])[..., None, None])  # cosines 0, 1 and 0.8
    assert torch.equal(group.images, keys[[1, 2]])
    weights = torch.tensor([1.0, 0.8]).softmax(0)
    target = weights[0] * torch.tensor([3.0, 0.0]) + weights[1] * torch.tensor([4.0, 3.0])
    expected = 0.1 * torch.tensor([2.0, 0.0]) + 0.9 * target
    assert torch.allclose(group.blended.flatten(), expected, atol=1e-6)


def test_an_answer_is_that_of_a_batch_with_its_neighbours_and_a_blended_bottleneck(ready):
    source = ready("sictta")
    adapter = source.adapt("sictta", neighbours=1)
    adapter(an_image(0))
    answer = adapter(an_image(1))

    network = source.network
    batchnorm.use(network, batchnorm.BATCH)
    with torch.no_grad():
        q, stored = network.encode(an_image(1))[-1][0], network.encode(an_image(0))[-1][0]
        r = torch.nn.functional.cosine_similarity(q.flatten(), stored.flatten(), dim=0)
        a, b, deepest = network.encode(torch.cat([an_image(1), an_image(0)]))
        deepest[0] = (1 - r) * q + r * stored
        expected = network.decode((a, b, deepest))[:1]
    assert torch.allclose(answer, expected, atol=1e-4)


def test_a_batch_is_answered_as_its_images_one_by_one(ready):
    together, alone = (ready("sictta").adapt("sictta", pixels=4096) for _ in range(2))
    for adapter in (together, alone):
        adapter._score = lambda logits, _: [
            float(x) for x in logits.float().var((1, 2, 3))
        ]  # no random pixels
    images = torch.cat([an_image(seed) for seed in range(8)])
    answers = torch.cat([together(part) for part in images.split(4)])
    assert torch.allclose(answers, torch.cat([alone(image[None]) for image in images]), atol=1e-4)


def test_the_accepted_share_falls_while_the_pool_fills(ready):
    adapter = ready("sictta").adapt("sictta")
    let_in = []
    for _ in range(5):  # with falling scores every image is the best so far, so that only rank 0 rejects it
        adapter.reset()
        adapter.pool.push(*(torch.zeros(len(let_in), 1),) * 2)
        let_in.append(next(n for n in range(1, 99) if adapter._is_reliable(-float(n))))
    assert let_in == [1, 2, 2, 3, 6]  # 1/(1 − size/5), and ⌊5·(1 − 0.8)⌋ is 0 in floating point, as published


def test_only_the_images_with_the_lowest_scores_enter_the_pool(ready):
    adapter = ready("sictta").adapt("sictta")
    adapter.pool.push(*(torch.zeros(9, 1),) * 2)  # the pool is full: one in ten images is accepted
    assert not any(adapter._is_reliable(1.0 + n) for n in range(40))
    assert adapter._is_reliable(0.5)
    assert not adapter._is_reliable(float("nan"))


@pytest.mark.parametrize(("score", "let_in"), [(2.5, True), (3.5, False)])
def test_of_forty_the_third_is_let_in_and_the_fourth_is_not(score, let_in, ready):
    """⌊40·(1 − 0.9)⌋ is 3 in floating point, as published."""
    adapter = ready("sictta").adapt("sictta")
    adapter.pool.push(*(torch.zeros(5, 1),) * 2)
    adapter.scores.extend(range(1, 40))
    assert adapter._is_reliable(score) is let_in


def test_a_bottleneck_that_is_not_finite_never_enters_the_pool(ready):
    adapter = ready("sictta").adapt("sictta")
    logits, keys = torch.randn(3, 2, 8, 8), torch.randn(3, 4, 2, 2)
    keys[1, 0, 0, 0], keys[2, 3, 1, 1] = torch.nan, torch.inf
    assert [score == score for score in adapter._score(logits, keys)] == [True, False, False]
    poisoned = an_image(0)
    poisoned[..., 0, 0] = torch.nan
    adapter._is_reliable = lambda score: score == score
    adapter(torch.cat([poisoned, an_image(1)]))
    assert len(adapter.pool) == 1
    assert torch.equal(adapter.pool.columns[1], an_image(1))


def test_after_the_stream_an_image_is_answered_among_its_neighbours_and_enters_nothing(ready):
    adapter = ready("sictta").adapt("sictta", neighbours=2)
    adapter._is_reliable = lambda score: True
    assert torch.equal(adapter.predict_frozen(an_image(0)), adapter.network(an_image(0)))
    assert len(adapter.pool) == 0
    adapter(torch.cat([an_image(seed) for seed in range(3)]))
    columns, scores = adapter.pool.columns, list(adapter.scores)
    drawn, images = adapter.generator.get_state(), torch.cat([an_image(3), an_image(4)])
    answer = adapter.predict_frozen(images)
    assert all(now is then for now, then in zip(adapter.pool.columns, columns, strict=True))
    assert list(adapter.scores) == scores
    assert torch.equal(adapter.generator.get_state(), drawn)
    adapter._is_reliable = lambda score: False
    assert torch.equal(answer, adapter(images))
    assert not torch.allclose(answer, adapter.network(images), atol=1e-2)


@pytest.mark.parametrize("calls", [1, 2, 3], ids=["anchor", "own statistics", "with neighbours"])
def test_a_call_that_fails_leaves_the_anchor_as_it_was(calls, ready):
    adapter = ready("sictta").adapt("sictta")
    adapter(an_image(0))
    expected, encode, left = adapter.network(an_image(1)), adapter.network.encode, [calls]

    def failing(images):
        left[0] -= 1
        if not left[0]:
            raise MemoryError
        return encode(images)

    adapter.network.encode = failing
    with pytest.raises(MemoryError):
        adapter(an_image(1))
    adapter.network.encode = encode
    assert torch.equal(adapter.network(an_image(1)), expected)


def test_the_pool_and_the_scores_stay_within_their_size(ready):
    adapter = ready("sictta").adapt("sictta", capacity=3, neighbours=2)
    adapter._is_reliable = lambda score: True
    for seed in range(6):
        adapter(an_image(seed, 32))
        assert len(adapter.pool) == min(seed + 1, 3)
    assert torch.equal(adapter.pool.columns[1][-1:], an_image(5, 32))


def test_nothing_is_ever_learnt(ready):
    source = ready("sictta")
    adapter = source.adapt("sictta")
    for seed in range(8):
        adapter(an_image(seed))
    now = adapter.network.state_dict()
    assert all(torch.equal(value, now[key]) for key, value in source.network.state_dict().items())
    assert not any(parameter.requires_grad for parameter in adapter.network.parameters())
