"""PASS: the momentum of its average, its sparse attention, its start as the identity, and its fallback."""

import copy
import math

import numpy as np
import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.adaptation import defaults
from ttdg.adaptation.methods.pass_ import METHOD, pass_momentum, published_uncertainty
from ttdg.adaptation.pass_prompts import Prompts, keep_top_channels
from ttdg.evaluation.tuning import configurations
from ttdg.networks import split


def images(seed: int = 1, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) + 1


def test_the_momentum_decays_as_published():
    found = [pass_momentum(t, 0.94, 0.01) for t in (1, 2, 3)]
    assert found == pytest.approx([0.104, 0.09836, 0.0930584])


def test_every_step_moves_the_slow_copy_by_its_momentum(ready):
    adapter = ready("pass").adapt("pass", steps=1, lr=0.1)
    adapter(images())
    start = [tensor.clone() for tensor in adapter.slow.values]
    adapter(images(2))
    m = pass_momentum(2, 0.94, 0.01)
    expected = [(1 - m) * a + m * b for a, b in zip(start, adapter.slow.tensors, strict=True)]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(adapter.slow.values, expected, strict=True))
    assert adapter.updates == 2


def test_a_batch_that_does_not_fit_into_memory_leaves_no_trace_after_a_reset(ready, monkeypatch):
    adapter = ready("pass").adapt("pass", steps=2, lr=0.1)
    expected = adapter(images())
    adapter.reset()

    def fails(adapter, images):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(type(adapter), "objective", fails)
        with pytest.raises(torch.OutOfMemoryError):
            adapter(images())
    adapter.reset()
    assert torch.equal(adapter(images()), expected)


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
    kept = keep_top_channels(weights)
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
    answer[0] *= 10  # sure, with some foreground
    plain[1] *= 10
    answer[2] = float("nan")
    chosen = adapter._less_uncertain(answer, plain)
    assert torch.equal(chosen[0], answer[0])
    assert torch.equal(chosen[1:], plain[1:])


@pytest.mark.parametrize("fallback", ["published", "entropy"])
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


def test_by_default_the_prompt_at_the_bottleneck_stays_the_identity_and_learns_with_entropy_alone(ready):
    moved = {}
    for objective in ("statistics", "entropy"):
        adapter = ready("pass").adapt("pass", lr=0.1, objective=objective)
        adapter(images())
        start = copy.deepcopy(adapter.prompts)
        adapter(images(2))
        pairs = zip(start.named_parameters(), adapter.prompts.parameters(), strict=True)
        moved[objective] = {name.split(".")[0] for (name, a), b in pairs if not torch.equal(a, b)}
    assert moved == {"statistics": {"decorator"}, "entropy": {"decorator", "bank", "query", "key", "value"}}
    assert "bottleneck" in METHOD.summary
    assert "bottleneck" not in METHOD.adapts


def test_the_objective_is_the_sum_over_the_encoder_s_layers_of_what_lies_between_its_statistics_and_the_source_s(
    ready,
):
    source, found, x = ready("pass"), [], images()
    adapter = source.adapt("pass")
    adapter(x)
    adapter.slow.restore()
    adapter._use(adapter.mode)
    with torch.no_grad():
        inputs = adapter.prompts.decorate(x)
    names = {module: name for name, module in adapter.network.named_modules()}
    plain = dict(source.network.named_modules())

    def look(layer, given):
        mean = given[0].mean((0, 2, 3)) - plain[names[layer]].running_mean
        var = given[0].var((0, 2, 3)) - plain[names[layer]].running_var
        found.append(mean.abs().mean() + 0.01 * var.abs().mean())

    layers = [m for m in adapter.network.modules() if isinstance(m, _BatchNorm)]
    handles = [layer.register_forward_pre_hook(look) for layer in layers]
    with torch.no_grad():
        adapter.network.encode(inputs)
    for handle in handles:
        handle.remove()
    assert len(found) == 3  # the encoder has three of the five layers
    assert adapter.objective(x).item() == pytest.approx(torch.stack(found).sum().item(), rel=1e-4)


def test_the_source_s_answer_is_the_source_s_after_any_number_of_batches(ready):
    source = ready("pass")
    adapter = source.adapt("pass", lr=0.1)
    for seed in range(2):
        adapter(images(seed))
    assert torch.equal(adapter._source_prediction(images(5)), source.adapt("source")(images(5)))


def test_the_running_statistics_of_one_batch_do_not_reach_the_next(ready):
    """With a rate of 0 nothing else changes, so that the second batch is predicted as if it were the first."""
    fresh, later = (ready("pass").adapt("pass", lr=0.0, fallback="never") for _ in range(2))
    later(images(2) * 3)
    assert torch.equal(fresh(images()), later(images()))


def test_attention_is_a_softmax_over_prompts_of_scaled_products_cut_to_the_nearest_channels():
    torch.manual_seed(0)
    prompts, features = Prompts(3, (20, 4, 4), 5), torch.randn(2, 20, 4, 4)
    prompts.bank.data.normal_()
    with torch.no_grad():
        found = prompts.attend((features,))[0]
        q, k, v = prompts.query(features), prompts.key(prompts.bank)[0], prompts.value(prompts.bank)[0]
    for image in range(2):
        weights = torch.zeros(20, 5)
        for c in range(20):
            products = [math.exp((q[image, c] * k[j]).sum().item() / math.sqrt(5)) for j in range(5)]
            weights[c] = torch.tensor(products) / sum(products)
        for j in range(5):
            for c in weights[:, j].argsort(descending=True)[2:]:  # a tenth of 20 channels is kept
                weights[c, j] = 0
        for c in range(20):
            expected = features[image, c] + sum(weights[c, j] * v[j] for j in range(5))
            assert torch.allclose(found[image, c], expected, atol=1e-4)


def discs(*probabilities: float) -> np.ndarray:
    """Foreground probabilities of 40 × 40 pixels for each value: that value inside a disc, 1e-3 outside it."""
    y, x = np.mgrid[:40, :40]
    inside = (y - 20) ** 2 + (x - 20) ** 2 < 100
    return np.stack([np.where(inside, p, 1e-3) for p in probabilities])


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_an_empty_mask_does_not_replace_the_source_s_disc_unless_the_entropy_decides(ready, head):
    """Values in NumPy, from the published formula −Σp log p/Σp: 6.9 for the empty mask, about 0.2 for the disc."""
    p = discs(1e-3, 0.95)
    score = -(p * np.log(p)).sum((1, 2)) / p.sum((1, 2))
    assert score[0] == pytest.approx(np.log(1000))
    assert score[1] < 0.3
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).mean((1, 2))
    assert entropy[0] < entropy[1]
    q = torch.tensor(p, dtype=torch.float32)
    logits = (
        torch.stack([(1 - q).log(), q.log()], 1) if head == "softmax" else (q.log() - (1 - q).log())[:, None]
    )
    empty, disc = logits[:1], logits[1:]
    published, other = (ready("pass").adapt("pass", head=head, **o) for o in ({}, {"fallback": "entropy"}))
    assert published._uncertainty(logits).tolist() == pytest.approx(score.tolist(), rel=1e-4)
    assert other._uncertainty(logits).tolist() == pytest.approx(entropy.tolist(), rel=1e-4)
    assert torch.equal(published._less_uncertain(empty, disc), disc)
    assert torch.equal(published._less_uncertain(disc, empty), disc)
    assert torch.equal(other._less_uncertain(empty, disc), empty)


def test_a_mask_whose_probabilities_round_to_zero_has_a_score():
    """All pixels have p = e⁻²⁰⁰, which is 0 in single precision; the weighted mean of −log p is 200."""
    assert published_uncertainty(torch.full((1, 1, 8, 8), -200.0), "sigmoid").item() == pytest.approx(200)


def test_the_defaults_are_the_published_setting_and_the_search_offers_both_scores():
    setting = {"lr": 5e-3, "steps": 2, "decay": 0.94, "least": 0.01, "fallback": "published"}
    assert setting.items() <= defaults("pass").items()
    offered = configurations("pass")
    assert {"lr": 5e-3, "fallback": "published"} in offered
    assert {point["fallback"] for point in offered} == {"published", "entropy"}


def test_the_published_score_is_divided_by_the_foreground_s_mass(ready):
    """Two pixels of foreground 0.9 and 0.2: the published measure, by hand."""
    adapter = ready("pass").adapt("pass")
    p = torch.tensor([0.9, 0.2])
    logits = torch.stack([(1 - p).log(), p.log()]).view(1, 2, 1, 2)
    expected = -(0.9 * math.log(0.9) + 0.2 * math.log(0.2)) / 1.1
    assert adapter._uncertainty(logits).item() == pytest.approx(expected, rel=1e-5)
    adapter.head = "sigmoid"
    assert adapter._uncertainty((p / (1 - p)).log().view(1, 1, 1, 2)).item() == pytest.approx(
        expected, rel=1e-5
    )


def test_a_frozen_answer_has_the_prompts_of_the_last_batch_and_takes_no_step(ready):
    adapter = ready("pass").adapt("pass", lr=0.1, objective="entropy", fallback="never")
    assert torch.equal(
        adapter.predict_frozen(images(9)), adapter.network(images(9))
    )  # before the first batch
    adapter(images())
    before = copy.deepcopy((adapter.network.state_dict(), adapter.prompts.state_dict(), adapter.slow.values))
    answer = adapter.predict_frozen(images(9))
    with torch.no_grad():
        decorated = adapter.prompts.decorate(images(9))
        expected = split.forward_split(adapter.network, decorated, adapter.prompts.attend)
        assert torch.equal(answer, expected)
        assert not torch.allclose(answer, adapter.network(images(9)), atol=1e-3)
    after = (adapter.network.state_dict(), adapter.prompts.state_dict())
    assert all(
        torch.equal(v, now[k]) for now, then in zip(after, before, strict=False) for k, v in then.items()
    )
    assert all(torch.equal(a, b) for a, b in zip(adapter.slow.values, before[2], strict=True))
    assert adapter.updates == 2


def test_a_frozen_answer_falls_back_to_the_source_too(ready):
    source = ready("pass")
    adapter = source.adapt("pass", lr=0.1)
    adapter(images())
    adapter._less_uncertain = lambda answer, plain: plain
    assert torch.equal(adapter.predict_frozen(images(9)), source.adapt("source")(images(9)))


@pytest.mark.parametrize("batches", [(1, None, 2), (None, 1, 2)])
def test_a_batch_without_a_finite_image_leaves_no_trace(ready, batches):
    bad = images(count=8).view(2, 3, 64, 64)  # another size than that of the prompts
    bad[:, 0, 3, 4] = float("nan")
    disturbed, calm = (ready("pass").adapt("pass", lr=0.1, objective="entropy") for _ in range(2))
    for seed in batches:
        disturbed(bad if seed is None else images(seed))
    for seed in (1, 2):
        calm(images(seed))
    disturbed(bad)
    before, now = calm.network.state_dict(), disturbed.network.state_dict()
    assert all(torch.equal(value, now[name]) for name, value in before.items())
    assert torch.equal(calm(images(3)), disturbed(images(3)))


def test_a_batch_with_a_finite_image_is_learnt_from(ready):
    adapter = ready("pass").adapt("pass", lr=0.1)
    some = images()
    some[0] = float("inf")
    adapter(some)
    assert adapter.updates == 2
