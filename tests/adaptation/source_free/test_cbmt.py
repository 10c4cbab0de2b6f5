import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.adaptation import adapt
from ttdg.adaptation.source_free.cbmt import band_sums, class_weights
from ttdg.networks import NetworkSpec, Segmenter

STILL = {"statistics": "source"}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Segmenter(NetworkSpec(labels=3, encoder="light")).eval()


def some_images(count=4, size=32, seed=0):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed)) - 0.4


def weights_of(bank, threshold=0.75, band=0.2, balance="all"):
    return class_weights(band_sums(bank, threshold, band), balance)


def a_bank(*values, pixels=20):
    """One structure; every value fills as many rows of 20 pixels."""
    return torch.cat([torch.full((1, 1, pixels, 20), value) for value in values], 2)


def test_a_bank_of_two_values_gives_the_ratio_of_their_losses():
    assert weights_of(a_bank(0.5, 0.9)).item() == pytest.approx(math.log(0.9) / math.log(0.5), rel=1e-5)


@given(easy=st.lists(st.one_of(st.floats(0, 0.149), st.floats(0.951, 1)), max_size=4))
@settings(max_examples=20, deadline=None)
def test_easy_pixels_do_not_change_the_weight(easy):
    assert weights_of(a_bank(0.5, 0.9, *easy)).item() == pytest.approx(
        math.log(0.9) / math.log(0.5), rel=1e-5
    )


def test_empty_bands_and_bands_of_few_pixels_give_a_weight_of_one():
    assert weights_of(a_bank(0.5, 0.9), band=1.0).item() == 1
    assert weights_of(a_bank(0.5, 0.9, pixels=4)).item() == 1  # 80 pixels each
    assert weights_of(a_bank(0.0, 1.0)).item() == 1


def test_a_symmetric_bank_at_a_threshold_of_one_half_gives_a_weight_of_one():
    assert weights_of(a_bank(0.3, 0.7), threshold=0.5).item() == pytest.approx(1.0, rel=1e-5)


def test_only_the_rarest_structure_is_balanced():
    common = torch.where(torch.arange(400).view(20, 20) % 2 == 0, 0.5, 0.9)[None, None]
    bank = torch.cat([common, torch.where(common == 0.5, 0.4, 0.8)], 1)
    w = weights_of(bank)
    assert torch.equal(weights_of(bank, balance="rarest"), torch.tensor([1.0, w[1]]))
    assert (w != 1).all()
    assert torch.equal(weights_of(bank, balance="none"), torch.ones(2))


def test_the_sums_of_a_batch_are_those_of_its_images():
    bank = torch.rand(3, 2, 16, 16)
    assert torch.equal(band_sums(bank, 0.75, 0.2)[1], band_sums(bank[1:2], 0.75, 0.2)[0])


def test_a_teacher_that_keeps_all_of_its_weights_stays_the_source(network):
    adapter = adapt(network, "cbmt", momentum=1.0, epochs=2, draw=4, **STILL)
    adapter.learn([some_images(6)])
    with torch.no_grad():
        assert torch.equal(adapter.predict_frozen(some_images()), network(some_images()))
    assert not all(
        torch.equal(a, b) for a, b in zip(adapter.network.parameters(), network.parameters(), strict=True)
    )


def test_a_teacher_that_keeps_none_of_its_weights_has_those_of_the_student(network):
    adapter = adapt(network, "cbmt", momentum=0.0, steps=2, draw=4)
    adapter(some_images())
    for mine, other in zip(adapter.teacher.parameters(), adapter.network.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=1e-7)


def test_in_training_mode_the_teachers_statistics_move_by_its_own_passes_over_clean_images(network):
    adapter = adapt(network, "cbmt", steps=1, draw=4)
    adapter(some_images(size=64))
    expected = copy.deepcopy(network).train()
    with torch.no_grad():
        expected(adapter._stored(torch.arange(4)))
    for (name, mine), other in zip(adapter.teacher.named_buffers(), expected.buffers(), strict=True):
        if "num_batches" not in name:
            assert torch.allclose(mine, other, atol=1e-4), name
    student = dict(adapter.network.named_buffers())
    assert any(not torch.equal(v, student[n]) for n, v in adapter.teacher.named_buffers())


def test_without_a_rate_the_bank_never_changes(network):
    adapter = adapt(network, "cbmt", lr=0.0, epochs=1, draw=4, **STILL)
    adapter.learn([some_images(6)])
    first = adapter.memory.columns["sums"][:6].clone()
    adapter._train(adapter._learn, 2, lambda: None)
    assert torch.allclose(adapter.memory.columns["sums"][:6], first, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("threshold", "label"), [(0.0, 1.0), (1.0, 0.0)])
def test_at_a_threshold_of_zero_or_one_all_labels_are_the_same(network, threshold, label):
    adapter = adapt(network, "cbmt", threshold=threshold, **STILL)
    seen = []
    adapter.objective = lambda logits, labels, weights: (seen.append(labels), logits.mean())[1]
    adapter._step(some_images(), some_images(seed=1), torch.ones(2))
    assert (seen[0] == label).all()


def test_the_step_equals_a_plain_implementation(network):
    """Nested structures from summed probabilities, weights by hand, torch's own Adam."""
    adapter = adapt(network, "cbmt", lr=1e-3, momentum=0.9, threshold=0.5, **STILL)
    student, teacher = copy.deepcopy(network), copy.deepcopy(network)
    optimiser = torch.optim.Adam(student.parameters(), lr=1e-3, betas=(0.9, 0.99))
    w = torch.tensor([1.0, 0.3])
    for seed in range(2):
        weak, strong = some_images(seed=seed), some_images(seed=seed + 10)
        loss, _ = adapter._step(weak, strong, w)
        with torch.no_grad():
            q = teacher(weak).softmax(1)
            labels = torch.stack([q[:, 1] + q[:, 2], q[:, 2]], 1) > 0.5
        p = student(strong).softmax(1)
        p = torch.stack([p[:, 1] + p[:, 2], p[:, 2]], 1)
        m = torch.ones_like(p)
        m[:, 1][~labels[:, 1]] = 0.3
        expected = (m * F.binary_cross_entropy(p, labels.float(), reduction="none")).sum() / m.sum()
        optimiser.zero_grad()
        expected.backward()
        optimiser.step()
        with torch.no_grad():
            for mine, other in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.copy_(0.9 * mine + 0.1 * other)
        assert torch.allclose(loss, expected.detach(), rtol=1e-4)
    source = list(network.parameters())
    for found, plain in ((adapter.network, student), (adapter.teacher, teacher)):
        moves = torch.cat([(a - b).flatten() for a, b in zip(plain.parameters(), source, strict=True)])
        errors = torch.cat(
            [(a - b).flatten() for a, b in zip(plain.parameters(), found.parameters(), strict=True)]
        )
        assert errors.norm() < 0.02 * moves.norm()


def test_the_rate_falls_by_its_factor_with_each_pass_and_returns(network):
    adapter, rates = adapt(network, "cbmt", epochs=3, draw=2, **STILL), []
    adapter._learn = lambda rows: rates.append(adapter.optimiser.param_groups[0]["lr"])
    adapter.learn([some_images(4)])
    assert rates == pytest.approx([5e-4, 5e-4, 4.5e-4, 4.5e-4, 4.05e-4, 4.05e-4])
    assert adapter.optimiser.param_groups[0]["lr"] == 5e-4
