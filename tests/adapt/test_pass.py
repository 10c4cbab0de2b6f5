"""PASS: its slow copy's momentum, its sparse attention, its start as the identity and its way back to the source."""

import pytest
import torch

from ttdg.adapt.pass_ import Prompts, momentum, sparse


def images(seed: int = 1, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) + 1


def test_the_momentum_decays_as_published():
    found = [momentum(t, 0.94, 0.01) for t in (1, 2, 3)]
    assert found == pytest.approx([0.104, 0.09836, 0.0930584])


def test_every_step_moves_the_slow_copy_by_its_momentum(ready):
    adapter = ready("pass").adapt("pass", steps=1, lr=0.1)
    adapter(images())
    start = [tensor.clone() for tensor in adapter.slow.values]
    adapter(images(2))
    m = momentum(2, 0.94, 0.01)
    expected = [(1 - m) * a + m * b for a, b in zip(start, adapter.slow.tensors, strict=True)]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(adapter.slow.values, expected, strict=True))
    assert adapter.updates == 2


def test_a_batch_starts_from_the_slow_copy_and_the_sources_statistics(ready):
    adapter = ready("pass").adapt("pass", steps=1, lr=0.1)
    adapter(images())
    slow = [value.clone() for value in adapter.slow.values]
    adapter.descent.lr = 0.0
    adapter.descent.restart()
    adapter(images(3))
    assert all(torch.equal(a, b) for a, b in zip(adapter.slow.tensors, slow, strict=True))


def test_every_prompt_channel_reaches_a_tenth_of_the_feature_channels():
    weights = torch.rand(2, 57, 8).softmax(-1)
    kept = sparse(weights)
    assert ((kept != 0).sum(1) == 5).all()
    assert torch.equal(kept[kept != 0], weights[kept != 0])
    assert (kept.amax(1) == weights.amax(1)).all()


def test_untrained_prompts_are_the_identity():
    prompts, features = Prompts(3, (12, 4, 4), 16), (torch.randn(2, 12, 4, 4),)
    assert torch.equal(prompts.decorate(images()), images())
    assert torch.equal(prompts.attend(features)[0], features[0])


def test_where_the_source_is_surer_it_answers(ready):
    source = ready("pass")
    adapter = source.adapt("pass", lr=0.1)
    answer, plain = torch.randn(3, 2, 8, 8), torch.randn(3, 2, 8, 8)
    answer[0] *= 10  # sure
    plain[1] *= 10
    answer[2] = float("nan")
    chosen = adapter._surer(answer, plain)
    assert torch.equal(chosen[0], answer[0])
    assert torch.equal(chosen[1:], plain[1:])


@pytest.mark.parametrize("fallback", ["full", "half"])
def test_the_answer_is_the_source_s_or_the_adapted_one_image_by_image(ready, fallback):
    source = ready("pass")
    adapted = source.adapt("pass", lr=0.05, fallback="never")(images(count=4))
    plain = source.adapt("source")(images(count=4))
    answer = source.adapt("pass", lr=0.05, fallback=fallback)(images(count=4))
    for row in range(4):
        assert torch.equal(answer[row], adapted[row]) or torch.allclose(answer[row], plain[row], atol=1e-6)


def test_convolutions_of_the_network_never_move(ready):
    source = ready("pass")
    adapter = source.adapt("pass", lr=0.1, objective="entropy")
    for seed in range(3):
        adapter(images(seed))
    before, now = source.network.state_dict(), adapter.network.state_dict()
    convolutions = [k for k in before if before[k].ndim == 4]
    assert convolutions
    assert all(torch.equal(before[k], now[k]) for k in convolutions)


def test_statistics_of_the_encoder_come_closer_to_the_source_s(ready):
    losses = []
    for steps in (1, 30):
        adapter = ready("pass").adapt("pass", steps=steps)
        adapter(images())
        losses.append(adapter.loss.item())
    assert losses[1] < losses[0] - 0.1
